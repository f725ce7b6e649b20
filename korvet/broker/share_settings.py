"""The settings that apply to one share group: its own, within the bounds of the broker, else the broker's."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from korvet.broker.group_settings import (
    GROUP_SETTINGS,
    SHARE_ISOLATION_LEVEL,
    SHARE_OFFSET_RESET,
    SHARE_RENEW,
    duration_ms,
)
from korvet.config import Config
from korvet.storage.interface import IsolationLevel
from korvet.storage.shares import ShareLimits


@frozen
class ShareSettings:
    """The settings of a share group. `reset_ms` is set if the group begins at records of that age."""

    limits: ShareLimits
    isolation_level: IsolationLevel
    begins_earliest: bool
    reset_ms: int | None


def share_settings(config: Config, own: Mapping[str, str]) -> ShareSettings:
    """Return the settings of a group that has `own` ones."""

    def bounded(name: str) -> int:
        setting = GROUP_SETTINGS[name]
        default = int(setting.default(config))
        if name not in own or setting.bounds is None:
            return default
        least, most = setting.bounds(config)
        return min(max(int(own[name]), least), most)

    reset = own.get(SHARE_OFFSET_RESET, "latest")
    is_committed = own.get(SHARE_ISOLATION_LEVEL) == "read_committed"
    return ShareSettings(
        ShareLimits(
            lock_ms=bounded("share.record.lock.duration.ms"),
            max_deliveries=bounded("share.delivery.count.limit"),
            max_locks=bounded("share.partition.max.record.locks"),
            can_renew=own.get(SHARE_RENEW, "true").strip().lower() == "true",
        ),
        IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED,
        reset == "earliest",
        duration_ms(reset),
    )
