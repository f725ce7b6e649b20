"""Data types of consumer groups: the heartbeats and answers of members, and what the group knows of a member."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from attrs import define, field, frozen

from korvet.groups.members import GroupLimits, Protocols
from korvet.groups.reconciliation import Current
from korvet.groups.subscriptions import Assignment, Subscription

# Member epochs in requests: a client joins or rejoins, leaves, or leaves for a while as a static member.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class ConsumerState(Enum):
    """The states of a consumer group; the values are the names that Kafka's tools print."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@frozen
class ConsumerLimits:
    """The settings for consumer groups: the broker's, and the group's own where it has some."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")  # the default is the first
    # Conversions of groups with members from the classic protocol and to it.
    can_upgrade: bool = True
    can_downgrade: bool = True
    classic: GroupLimits = field(factory=GroupLimits)  # of the classic group that a group may become

    @property
    def can_mix(self) -> bool:
        """True if classic members may join a group with members of the consumer protocol."""
        return self.can_upgrade or self.can_downgrade


@frozen(kw_only=True)
class Heartbeat:
    """The fields of ConsumerGroupHeartbeat. None, and -1 for the timeout, mean: as before."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    names: frozenset[str] | None = None
    expression: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None

    @property
    def is_full(self) -> bool:
        """True if the answer must contain the assignment, even if it has not changed."""
        has_subscription = self.names is not None or self.expression is not None
        is_complete = has_subscription and self.rebalance_timeout_ms != -1 and self.owned is not None
        return is_complete or self.member_epoch == JOIN_EPOCH


@frozen
class Beat:
    """The answer to a heartbeat. `assignment` is None if it has not changed."""

    member_id: str
    member_epoch: int
    assignment: Assignment | None = None


@frozen
class ClassicSide:
    """The join of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: Protocols

    @property
    def name(self) -> str:
        """The protocol in the answers to the member's joins: the one that it prefers."""
        return self.protocols[0][0]

    @property
    def metadata(self) -> bytes:
        """The member's metadata for that protocol."""
        return self.protocols[0][1]


class Details(NamedTuple):
    """The fields of a member's heartbeats, except for its subscription.

    `classic` is None if the member uses the consumer protocol.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicSide | None = None


@define(eq=False)
class ConsumerMember:
    """One member."""

    member_id: str
    details: Details = field(factory=Details)
    subscription: Subscription = field(factory=Subscription)
    current: Current = field(factory=Current)

    @property
    def instance_id(self) -> str | None:
        """The group instance id of a static member."""
        return self.details.instance_id

    @property
    def classic(self) -> ClassicSide | None:
        """The member's join, if it uses the classic protocol."""
        return self.details.classic

    @property
    def epoch(self) -> int:
        """The member epoch."""
        return self.current.epoch

    @property
    def has_left_for_a_while(self) -> bool:
        """True if the member is static and another client may take its place."""
        return self.current.epoch == STATIC_LEAVE_EPOCH


@define
class Changes:
    """Changes since the last save: member ids by the part that has changed, also of removed members."""

    members: set[str] = field(factory=set)
    currents: set[str] = field(factory=set)
    targets: set[str] = field(factory=set)
    # Members that have released partitions. Their commits in flight must end before another member gets these.
    released: set[str] = field(factory=set)
    has_head: bool = False
    has_resolved: bool = False

    def __bool__(self) -> bool:
        return bool(self.members or self.currents or self.targets or self.has_head or self.has_resolved)

    def add_all_parts(self, member_id: str) -> None:
        """Note that every part of a member has changed, or that the member is gone."""
        self.members.add(member_id)
        self.currents.add(member_id)
        self.targets.add(member_id)
