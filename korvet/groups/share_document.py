"""The JSON document in which the members of a share group are stored.

    {"format": 2, "type": "share", "since_ms": 1763666000123, "epoch": 7, "assignment_epoch": 7, "topics_hash": 5,
     "members": [{"member_id": "…", …, "names": ["jobs"], "epoch": 7, "previous_epoch": 6,
                  "assignment": {TOPIC-ID: [0, 1]}}]}

Brokers that only have classic and consumer groups refuse it.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from korvet.groups.document import UnreadableDocument
from korvet.groups.share import ShareGroup, ShareGroupLimits, ShareMember
from korvet.groups.subscriptions import Subscription
from korvet.protocol.text import quoted

FORMAT = 2
TYPE = "share"


def is_share_document(document: bytes) -> bool:
    """Return True if the document is that of a share group."""
    try:
        return bool(json.loads(document)["type"] == TYPE)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def written_share(group: ShareGroup, since_ms: int) -> bytes:
    """Return the document of a group."""
    document = {
        "format": FORMAT,
        "type": TYPE,
        "since_ms": since_ms,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "topics_hash": group.topics_hash,
        "members": [_written_member(member) for member in group.members.values()],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def read_share(group_id: str, document: bytes, limits: ShareGroupLimits) -> tuple[ShareGroup, int]:
    """Return the group and its `since_ms`. It has no timeouts until `resume`. Raises UnreadableDocument."""
    try:
        return _read(group_id, json.loads(document), limits)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableDocument(f"group {group_id!r} has a damaged document: {error!r:.200}") from None


def _read(group_id: str, values: dict[str, Any], limits: ShareGroupLimits) -> tuple[ShareGroup, int]:
    if values["format"] > FORMAT or values["type"] != TYPE:
        raise UnreadableDocument(
            f"group {quoted(group_id)} is of type {values['type']}, format {values['format']}, not {TYPE}, {FORMAT}"
        )
    if not 0 <= values["assignment_epoch"] <= values["epoch"] < 2**31 or not 0 <= values["since_ms"] < 2**63:
        raise ValueError("a number is out of range")
    members = [_read_member(member) for member in values["members"]]
    group = ShareGroup(
        group_id,
        limits,
        epoch=values["epoch"],
        assignment_epoch=values["assignment_epoch"],
        topics_hash=values["topics_hash"],
        members={member.member_id: member for member in members},
    )
    return group, values["since_ms"]


def _written_member(member: ShareMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "names": sorted(member.subscription.names),
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "assignment": {
            str(topic_id): sorted(partitions) for topic_id, partitions in member.assignment.items()
        },
    }


def _read_member(values: dict[str, Any]) -> ShareMember:
    values["subscription"] = Subscription(frozenset(values.pop("names")))
    assignment = values.pop("assignment")
    values["assignment"] = {
        UUID(topic_id): frozenset(partitions) for topic_id, partitions in assignment.items()
    }
    return ShareMember(**values)
