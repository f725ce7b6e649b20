"""The JSON document in which a group is stored, readable for operators who inspect Redis.

    {"format": 1, "type": "classic", "state": "Stable", "since_ms": 1763666000123, "generation_id": 7,
     "protocol_type": "consumer", "protocol_name": "range", "leader": "…",
     "members": [{"member_id": "…", …, "protocols": [["range", "AAMA…"]], "assignment": "AAMA…"}]}

Metadata and assignments are the members' bytes in base64. `since_ms` is the wall clock time at which the group entered
its state; the retention of an empty group's offsets is measured from it. Waiting requests are not stored: after a
restart the broker has no connection on which to answer them, and the members send them again.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from korvet.groups.classic import ClassicGroup
from korvet.groups.members import GroupLimits, Member, State
from korvet.protocol.text import quoted

FORMAT = 1
TYPE = "classic"


class UnreadableDocument(Exception):  # noqa: N818  names the state of the document
    """The document is damaged, was saved by a newer korvet, or is not of a classic group."""


def written(group: ClassicGroup, since_ms: int) -> bytes:
    """Return the document of a group."""
    document = {
        "format": FORMAT,
        "type": TYPE,
        "state": group.state.value,
        "since_ms": since_ms,
        "generation_id": group.generation_id,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "leader": group.leader,
        "members": [_written_member(member) for member in group.members.values()],
    }
    return json.dumps(document, ensure_ascii=False).encode()


def read(group_id: str, document: bytes, limits: GroupLimits) -> tuple[ClassicGroup, int]:
    """Return the group and its `since_ms`. It has no timeouts until `resume`. Raises UnreadableDocument."""
    try:
        return _read(group_id, json.loads(document), limits)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableDocument(f"group {group_id!r} has a damaged document: {error!r:.200}") from None


def _read(group_id: str, values: dict[str, Any], limits: GroupLimits) -> tuple[ClassicGroup, int]:
    if values["format"] > FORMAT or values["type"] != TYPE:
        raise UnreadableDocument(
            f"group {quoted(group_id)} is of type {values['type']}, format {values['format']}, not {TYPE}, {FORMAT}"
        )
    if not -1 <= values["generation_id"] < 2**31 or not 0 <= values["since_ms"] < 2**63:
        raise ValueError("a number is out of range")
    members = [_read_member(member) for member in values["members"]]
    group = ClassicGroup(
        group_id,
        limits,
        state=State(values["state"]),
        generation_id=values["generation_id"],
        protocol_type=values["protocol_type"],
        protocol_name=values["protocol_name"],
        leader=values["leader"],
        members={member.member_id: member for member in members},
    )
    return group, values["since_ms"]


def _written_member(member: Member) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "protocols": [[name, b64encode(metadata).decode()] for name, metadata in member.protocols],
        "assignment": b64encode(member.assignment).decode(),
    }


def _read_member(values: dict[str, Any]) -> Member:
    values["protocols"] = tuple((name, b64decode(metadata)) for name, metadata in values["protocols"])
    values["assignment"] = b64decode(values["assignment"])
    return Member(**values)
