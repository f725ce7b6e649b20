"""Requests of clients for share groups, as the coordinator answers them: pure functions of a group and a request."""

from __future__ import annotations

from collections.abc import Mapping

from korvet.config import Config
from korvet.groups.classic import ClassicGroup
from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import JOIN_EPOCH
from korvet.groups.machine import Group, GroupMachine
from korvet.groups.share import ShareGroup, ShareGroupLimits, ShareHeartbeat
from korvet.protocol.errors import GroupIdNotFound


def share_limits_of(config: Config, own: Mapping[str, str]) -> ShareGroupLimits:
    """Return the limits of a group: its own settings, within the present bounds of the broker."""

    def bounded(name: str) -> int:
        least, default, most = (
            int(getattr(config, f"group_share_{prefix}{name}_ms")) for prefix in ("min_", "", "max_")
        )
        value = own.get(f"share.{name.replace('_', '.')}.ms")
        return default if value is None else min(max(int(value), least), most)

    return ShareGroupLimits(
        bounded("session_timeout"), bounded("heartbeat_interval"), config.group_share_max_size
    )


def share_group(
    machine: GroupMachine, request: ShareHeartbeat, limits: ShareGroupLimits, *, exists: bool
) -> ShareGroup:
    """Return the group for a heartbeat: a new one, which the caller has to keep, if there is no group of that id.

    Raises GroupIdNotFound.
    """
    group = machine.group
    if isinstance(group, ShareGroup):
        group.limits = limits
        return group
    if exists:
        raise GroupIdNotFound(f"Group {group.group_id} is not a share group.")
    if request.member_epoch != JOIN_EPOCH:
        raise GroupIdNotFound(f"Share group {group.group_id} not found.")
    # In Kafka the epoch is 1 before the first member joins.
    return ShareGroup(group.group_id, limits, epoch=1, assignment_epoch=1)


def refuse_share(group: Group) -> ClassicGroup | ConsumerGroup:
    """Return a group that commits offsets. Raises GroupIdNotFound for a share group, which has none."""
    if isinstance(group, ShareGroup):
        raise GroupIdNotFound(f"Group {group.group_id} is a share group.")
    return group
