"""The document of a consumer group whose broker assigns (KIP-848): a head, and parts for its members.

    head    {"format": 2, "type": "consumer", "since_ms": 1763666000123, "epoch": 7, "assignment_epoch": 7, …}
    m:ID    what a member has sent about itself, and its subscription
    c:ID    its current assignment: topic id -> [[partition, epoch at which the member was granted it], …]
    t:ID    its target assignment: topic id -> partitions
    r       the topics that match each expression

Only the parts that have changed are saved, so that a step of one member of a thousand writes some hundred bytes.
Brokers that only have classic groups refuse format 2.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import ClassicSide, ConsumerLimits, ConsumerMember, Details
from korvet.groups.document import UnreadableDocument
from korvet.groups.reconciliation import Current, Granted, MemberState
from korvet.groups.subscriptions import Assignment, Subscription, Subscriptions
from korvet.protocol.text import quoted

FORMAT = 2
TYPE = "consumer"
MEMBER, CURRENT, TARGET, RESOLVED = "m:", "c:", "t:", "r"

#: Parts by name. None removes a part.
PartChanges = dict[str, bytes | None]


def is_consumer_head(document: bytes) -> bool:
    """Return True if the document is the head of a consumer group."""
    try:
        return bool(json.loads(document)["type"] == TYPE)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def written_head(group: ConsumerGroup, since_ms: int) -> bytes:
    """Return the head of a group."""
    return _json(
        {
            "format": FORMAT,
            "type": TYPE,
            "since_ms": since_ms,
            "epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            "topics_hash": group.topics_hash,
        }
    )


def all_parts(group: ConsumerGroup) -> PartChanges:
    """Return all parts of a group."""
    parts: PartChanges = {}
    for member_id, member in group.members.items():
        parts[MEMBER + member_id] = _member(member)
        parts[CURRENT + member_id] = _current(member.current)
        parts[TARGET + member_id] = _assignment(group.targets.get(member_id, {}))
    if group.resolved:
        parts[RESOLVED] = _resolved(group)
    return parts


def removed_parts(member_ids: Collection[str]) -> PartChanges:
    """Return the removal of these members' parts, and of the resolved expressions, if there are such members."""
    parts: PartChanges = {kind + each: None for each in member_ids for kind in (MEMBER, CURRENT, TARGET)}
    return {RESOLVED: None, **parts} if parts else parts


def changed_parts(group: ConsumerGroup) -> PartChanges:
    """Return the parts that have changed since the last save, None for parts of members that are gone."""
    changes, members = group.changes, group.members
    parts: PartChanges = {}
    for member_id in changes.members:
        member = members.get(member_id)
        parts[MEMBER + member_id] = None if member is None else _member(member)
    for member_id in changes.currents:
        member = members.get(member_id)
        parts[CURRENT + member_id] = None if member is None else _current(member.current)
    for member_id in changes.targets:
        target = group.targets.get(member_id, {})
        parts[TARGET + member_id] = _assignment(target) if member_id in members else None
    if changes.has_resolved:
        parts[RESOLVED] = _resolved(group) if group.resolved else None
    return parts


def read_parts(
    group_id: str, head: bytes, parts: Mapping[str, bytes], limits: ConsumerLimits
) -> tuple[ConsumerGroup, int]:
    """Return the group and its `since_ms`. It has no timeouts until `resume`. Raises UnreadableDocument."""
    try:
        return _read(group_id, json.loads(head), parts, limits)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableDocument(f"group {group_id!r} has a damaged document: {error!r:.200}") from None


def _read(
    group_id: str, values: dict[str, Any], parts: Mapping[str, bytes], limits: ConsumerLimits
) -> tuple[ConsumerGroup, int]:
    if values["format"] > FORMAT or values["type"] != TYPE:
        raise UnreadableDocument(
            f"group {quoted(group_id)} is of type {values['type']}, format {values['format']}, not {TYPE}, {FORMAT}"
        )
    if not 0 <= values["assignment_epoch"] <= values["epoch"] < 2**31 or not 0 <= values["since_ms"] < 2**63:
        raise ValueError("a number is out of range")
    names = sorted(name.removeprefix(MEMBER) for name in parts if name.startswith(MEMBER))
    resolved = json.loads(parts.get(RESOLVED, b"{}"))
    group = ConsumerGroup(
        group_id,
        limits,
        epoch=values["epoch"],
        assignment_epoch=values["assignment_epoch"],
        topics_hash=values["topics_hash"],
        members={name: _read_member(name, parts) for name in names},
        targets={name: _read_assignment(json.loads(parts[TARGET + name])) for name in names},
        subscriptions=Subscriptions({text: frozenset(found) for text, found in resolved.items()}),
    )
    return group, values["since_ms"]


# --- Members ------------------------------------------------------------------------------------------------


def _member(member: ConsumerMember) -> bytes:
    details = member.details._asdict()
    classic = member.classic
    if classic is not None:
        protocols = [[name, b64encode(metadata).decode()] for name, metadata in classic.protocols]
        details["classic"] = {"session_timeout_ms": classic.session_timeout_ms, "protocols": protocols}
    subscription = member.subscription
    return _json(
        {**details, "names": sorted(subscription.names), "expression": subscription.expression},
    )


def _read_member(member_id: str, parts: Mapping[str, bytes]) -> ConsumerMember:
    values = json.loads(parts[MEMBER + member_id])
    subscription = Subscription(frozenset(values.pop("names")), values.pop("expression"))
    classic = values.pop("classic")
    if classic is not None:
        protocols = tuple((name, b64decode(metadata)) for name, metadata in classic["protocols"])
        classic = ClassicSide(classic["session_timeout_ms"], protocols)
    current = json.loads(parts[CURRENT + member_id])
    return ConsumerMember(
        member_id,
        Details(**values, classic=classic),
        subscription,
        Current(
            MemberState(current["state"]),
            current["epoch"],
            current["previous_epoch"],
            _read_granted(current["assigned"]),
            _read_granted(current["revoking"]),
        ),
    )


def _current(current: Current) -> bytes:
    return _json(
        {
            "state": current.state.value,
            "epoch": current.epoch,
            "previous_epoch": current.previous_epoch,
            "assigned": _granted(current.assigned),
            "revoking": _granted(current.revoking),
        }
    )


def _granted(granted: Granted) -> dict[str, list[tuple[int, int]]]:
    return {str(topic_id): sorted(epochs.items()) for topic_id, epochs in granted.items()}


def _read_granted(values: dict[str, list[tuple[int, int]]]) -> Granted:
    return {UUID(topic_id): dict(epochs) for topic_id, epochs in values.items()}


def _assignment(assignment: Assignment) -> bytes:
    return _json({str(topic_id): sorted(partitions) for topic_id, partitions in assignment.items()})


def _read_assignment(values: dict[str, list[int]]) -> Assignment:
    return {UUID(topic_id): frozenset(partitions) for topic_id, partitions in values.items()}


def _resolved(group: ConsumerGroup) -> bytes:
    return _json({text: sorted(names) for text, names in group.resolved.items()})


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
