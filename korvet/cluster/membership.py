"""The living brokers of a cluster, as one broker knows them, and what this follows from: leaders and coordinators.

`Membership` alone is that of a broker with storage in its own memory, which no other broker shares.
`korvet.cluster.registered` keeps it up to date with the registrations in a store.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import trio
from attrs import define, field

from korvet.cluster.placement import Leaders, hash_of, owner, seeds_of
from korvet.cluster.registration import Registration
from korvet.protocol.errors import CoordinatorNotAvailable, NotCoordinator
from korvet.storage.interface import StorageUsageError, TopicPartition

logger = logging.getLogger(__name__)


class NodeIdTaken(StorageUsageError):  # noqa: N818  reads as a sentence
    """Another living broker has this broker's node id."""


@define(eq=False)
class Membership:
    """The living brokers, and this broker's own session.

    `tenure` rises when this broker's session has ended and begins again: what it held in memory for the cluster may be
    out of date then.
    """

    own: Registration
    tenure: int = 0
    living: Mapping[int, Registration] = field(init=False)  # by node id, sorted
    known: Mapping[int, Registration] = field(
        init=False, repr=False
    )  # the living ones, and those that have left
    changed: trio.Event = field(factory=trio.Event, repr=False)  # set, and replaced, at the next change
    replaced_by: Registration | None = None  # another broker that has taken over this one's node id
    ended: trio.Event = field(factory=trio.Event, repr=False)  # set with `replaced_by`
    is_leaving: bool = False
    _is_alone: bool = field(init=False, repr=False)  # no other broker lives
    _session_ends_s: float = math.inf  # Trio time
    _seeds: dict[int, int] = field(init=False, repr=False)
    _leaders: dict[str, Leaders] = field(init=False, factory=dict, repr=False)  # by listener

    def __attrs_post_init__(self) -> None:
        self._use({self.own.node_id: self.own}, {})

    # --- Brokers ----------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """The id of this broker."""
        return self.own.node_id

    @property
    def others(self) -> list[Registration]:
        """The other living brokers."""
        return [each for each in self.living.values() if each.node_id != self.node_id]

    @property
    def controller_id(self) -> int:
        """The lowest living node id."""
        return next(iter(self.living))

    def brokers_on(self, listener: str) -> Sequence[Registration]:
        """Return the living brokers that have a listener of that name."""
        return [each for each in self.living.values() if listener in each.addresses]

    def leaders_on(self, listener: str) -> Leaders:
        """Return the present leaders of all partitions among the brokers with a listener of that name.

        Every broker serves every partition, so leaders only spread the load.
        """
        leaders = self._leaders.get(listener)
        if leaders is None:
            known = [each.node_id for each in self.known.values() if listener in each.addresses]
            leaders = Leaders(known, [each.node_id for each in self.brokers_on(listener)])
            self._leaders[listener] = leaders
        return leaders

    def leader_id(self, tp: TopicPartition, listener: str) -> int:
        """Return the leader of a partition among the brokers with a listener of that name; NO_NODE without one."""
        return self.leaders_on(listener).of(tp.topic, tp.partition)

    @property
    def leads(self) -> bool:
        """False if other brokers lead all partitions now, or may do so: this one leaves, or its session has ended.

        A client that no longer finds this broker in Metadata sends its unanswered records to another broker. So this
        one must not append them as well.
        """
        return not self.is_leaving and (self.is_in_session or self._is_alone)

    # --- Groups -----------------------------------------------------------------------------------------

    def coordinator(self, group_id: str) -> Registration:
        """Return the coordinator of a group. Raises CoordinatorNotAvailable if this broker's session has ended."""
        if not self.is_in_session:
            raise CoordinatorNotAvailable("this broker cannot renew its registration in the store")
        return self.living[self._coordinator_id(group_id)]

    def coordinates(self, group_id: str) -> bool:
        """Return True if this broker is the coordinator of a group, whether or not its session has ended."""
        return self._coordinator_id(group_id) == self.node_id

    def check_coordinates(self, group_id: str) -> None:
        """Raise NotCoordinator if another broker coordinates the group, and the errors of `coordinator`."""
        if self.coordinator(group_id).node_id != self.node_id:
            raise NotCoordinator(f"broker {self._coordinator_id(group_id)} coordinates the group")

    def _coordinator_id(self, group_id: str) -> int:
        if len(self._seeds) == 1:
            return next(iter(self._seeds))
        return owner(hash_of(group_id), self._seeds)

    @property
    def is_in_session(self) -> bool:
        """True while no other broker can have declared this one dead."""
        return trio.current_time() < self._session_ends_s

    # --- The end ----------------------------------------------------------------------------------------

    def check_not_replaced(self) -> None:
        """Raise NodeIdTaken if another broker has taken over this one's node id."""
        if (other := self.replaced_by) is not None:
            raise NodeIdTaken(
                f"the broker at {other.address}, started {other.started}, has taken over node.id {other.node_id};"
                " brokers need different node ids and advertised.listeners"
            )

    def begin_to_leave(self) -> None:
        """Stop leading partitions if there are other brokers. They follow once they know, by `leave`."""
        self.is_leaving = bool(self.others)

    async def leave(self) -> None:
        """Deregister this broker, so that the others take over immediately."""

    # --- Changes ----------------------------------------------------------------------------------------

    def _use(self, living: Mapping[int, Registration], known: Mapping[int, Registration]) -> None:
        """Use these brokers as the living ones, and as those that are known, from now on."""
        # A broker that leaves last, and answers what it has accepted, still has to name a broker.
        living = living or {self.own.node_id: self.own}
        self.living = {node_id: living[node_id] for node_id in sorted(living)}
        self.known = {**known, **self.living}
        self._is_alone = self.living.keys() == {self.own.node_id}
        self._seeds = seeds_of(self.living)
        self._leaders.clear()
        self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()
