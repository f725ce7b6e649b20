"""Data types of groups: the requests and answers of members, and the member's state in the group.

They hold the fields of JoinGroup, SyncGroup and LeaveGroup that do not depend on the version of the request.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from attrs import define, field, frozen

from korvet.protocol.errors import ErrorCode

# The protocol type of consumers, whose metadata begins with the topics they subscribe to.
CONSUMER = "consumer"
# Size of the length field before a text or metadata, in bytes.
LENGTH_BYTES = 4
NEW_MEMBER = ""  # the member id in the first join of a client

Ticket = object
# (name, metadata) of each protocol, in the member's order of preference.
Protocols = tuple[tuple[str, bytes], ...]


class State(Enum):
    """The states of a group; the values are the names that Kafka's tools print."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@frozen
class GroupLimits:
    """The broker's settings for groups."""

    initial_rebalance_delay_ms: int = 3000
    max_size: int = 2**31 - 1
    # Clients that were assigned a member id and have not joined with it yet. If such a client disconnects, its id
    # stays until the session timeout.
    max_newcomers: int = 500
    # Limit for the join of a new member: the group does not notice if its client disconnects while the join waits.
    new_member_join_timeout_ms: int = 300_000


@frozen(kw_only=True)
class Join:
    """A request to be a member of the next generation, or to get the current one again."""

    member_id: str = NEW_MEMBER
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    protocol_type: str = CONSUMER
    protocols: Protocols = ()
    reason: str | None = None
    # True if the client supports MEMBER_ID_REQUIRED (v4, KIP-394), and skipping the assignment (v9, KIP-814).
    can_be_sent_away: bool = True
    can_skip_assignment: bool = True

    @property
    def ids(self) -> tuple[str, str, str]:
        """The ids that the group stores with the member and returns in answers."""
        return self.member_id, self.group_instance_id or "", self.client_id

    @property
    def needs_member_id(self) -> bool:
        """True if the client has to join again with the member id that it gets."""
        return self.member_id == NEW_MEMBER and self.group_instance_id is None and self.can_be_sent_away

    @property
    def size(self) -> int:
        """Bytes of the member's texts and metadata in the request, including their length fields."""
        texts = (*self.ids, self.client_host, self.protocol_type, *(name for name, _ in self.protocols))
        return sum(LENGTH_BYTES + len(text.encode()) for text in texts) + sum(
            LENGTH_BYTES + len(metadata) for _, metadata in self.protocols
        )


class JoinedMember(NamedTuple):
    """A member in the leader's answer to a join."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@frozen(kw_only=True)
class Joined:
    """The answer to a join. Only the leader's has `members`."""

    error_code: ErrorCode = ErrorCode.NONE
    member_id: str = NEW_MEMBER
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@frozen(kw_only=True)
class Sync:
    """A request for a member's assignment. The leader's has the assignments of all members."""

    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = field(factory=dict)


@frozen(kw_only=True)
class Synced:
    """The answer to a sync."""

    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


Answer = Joined | Synced


@frozen
class Leave:
    """A request to remove a member, identified by its member id, its instance id, or both."""

    member_id: str = NEW_MEMBER
    group_instance_id: str | None = None
    reason: str | None = None


@define(eq=False)
class Member:
    """One member. `is_new` until its first generation begins."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol, or b"" if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    @property
    def protocol_names(self) -> frozenset[str]:
        """Names of the protocols that the member supports."""
        return frozenset(name for name, _ in self.protocols)


def selected_protocol(members: Collection[Member], supported: Mapping[str, int]) -> str:
    """Return the protocol with the most votes. Each member votes for its first one that all members support.

    `supported` has the number of members that support each protocol.
    """
    votes = Counter(
        next(name for name, _ in member.protocols if supported[name] == len(members)) for member in members
    )
    return votes.most_common(1)[0][0]


def subscribed_topics(metadata: bytes) -> list[str]:
    """Return the topics in a consumer's metadata: an int16 version, then an array of strings. Raises ValueError."""
    try:
        _, count = struct.unpack_from(">hi", metadata)
        position, topics = 6, []
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, position)
            name = metadata[position + 2 : position + 2 + size]
            if size < 0 or len(name) != size:
                raise ValueError("a topic's name is longer than the metadata")
            topics.append(name.decode())
            position += 2 + size
    except struct.error as error:
        raise ValueError(str(error)) from error
    return topics
