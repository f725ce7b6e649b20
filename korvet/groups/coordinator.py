"""The coordinator of groups: it translates the requests of members and administrators for the groups' state machines.

`korvet.coordination.runtime` runs the machines: it loads and saves them, sends their answers, and handles their
timeouts. Each method of `VERBS` may be called in any process of the broker that coordinates the group; another process
may run it (`korvet.coordination.routing`).

Offsets are committed while other requests change the group, so that commits do not wait for each other. A new
generation is not saved while commits of the previous one are in flight, and the storage rejects commits of a generation
that is older than the newest one it has seen.

`expire_offsets` deletes committed offsets that are older than `offsets.retention.minutes` and belong to topics that
the group does not consume. Each broker does it for the groups that it coordinates. It runs forever, as `run` does,
under `korvet.concurrency.tasks.supervise`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar

import trio
from attrs import define, field

from korvet.cluster.membership import Membership
from korvet.concurrency.tasks import in_parallel
from korvet.concurrency.time_slices import run_in_slices
from korvet.config import Config
from korvet.coordination.routing import Processes, Routing, Verbs
from korvet.coordination.runtime import Held, Machines, Parked, Runtime, Ticket, current_ms
from korvet.groups import classic_requests
from korvet.groups.classic import ClassicGroup
from korvet.groups.commits import check_fetch
from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import JOIN_EPOCH, Beat, ConsumerLimits, Heartbeat
from korvet.groups.consumer_requests import Answer as ConsumerAnswer
from korvet.groups.consumer_requests import (
    CommitCheck,
    KnownLimits,
    KnownTopics,
    Refreshes,
    Resolved,
    classic_limits_of,
    consumer_beat,
    steady_member,
)
from korvet.groups.document import UnreadableDocument, written
from korvet.groups.machine import Group, GroupMachine, new_machine, read_group, read_machine
from korvet.groups.members import GroupLimits, Join, Joined, Leave, State, Sync, Synced
from korvet.groups.parts import all_parts, written_head
from korvet.groups.share import ShareGroup, ShareGroupLimits, ShareHeartbeat
from korvet.groups.share_document import written_share
from korvet.groups.share_requests import refuse_share, share_group, share_limits_of
from korvet.groups.subscriptions import Topics
from korvet.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    FencedInstanceId,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidGroupId,
    InvalidRegularExpression,
    InvalidRequest,
    InvalidSessionTimeout,
    KafkaError,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
)
from korvet.protocol.text import LONGEST_ID_BYTES, is_longer, quoted
from korvet.storage.interface import (
    GROUP,
    OffsetAndMetadata,
    PendingAck,
    ProducerTransaction,
    Storage,
    TopicPartition,
)

logger = logging.getLogger(__name__)

NO_GENERATION = -1

VERBS = Verbs(GROUP)

HeldGroup = Held[GroupMachine]
Outcomes = dict[TopicPartition, KafkaError | None]


Packed = tuple[str, bytes, Mapping[str, bytes]]


def _packed(_: GroupCoordinator, group: Group) -> Packed:
    if isinstance(group, ConsumerGroup):
        parts = {name: part for name, part in all_parts(group).items() if part is not None}
        return group.group_id, written_head(group, 0), parts
    if isinstance(group, ShareGroup):
        return group.group_id, written_share(group, 0), {}
    return group.group_id, written(group, 0), {}


def _unpacked(coordinator: GroupCoordinator, packed: Packed) -> Group:
    group_id, document, parts = packed
    limits, share_limits = coordinator.consumer_limits(group_id), coordinator.share_limits(group_id)
    return read_group(group_id, document, parts, coordinator.limits, limits, share_limits)[0]


def _all_packed(coordinator: GroupCoordinator, groups: list[Group]) -> list[Packed]:
    return [_packed(coordinator, group) for group in groups]


def _all_unpacked(coordinator: GroupCoordinator, packed: list[Packed]) -> list[Group]:
    return [_unpacked(coordinator, each) for each in packed]


@define(eq=False)
class GroupCoordinator:
    """See the module. `clock` returns milliseconds since 1970; timeouts use Trio's clock.

    `processes` are those of the broker, or None if it is one process.
    """

    _storage: Storage
    config: Config
    clock: Callable[[], int]
    membership: Membership = field(repr=False)
    processes: Processes | None = field(default=None, repr=False, kw_only=True)
    routing: Routing = field(init=False, repr=False)
    runtime: Runtime[GroupMachine] = field(init=False, repr=False)
    settings: Mapping[str, Mapping[str, str]] = field(
        factory=dict
    )  # that clients have set, by group id and name
    _known: KnownTopics = field(factory=KnownTopics, repr=False)
    _limits: KnownLimits = field(factory=KnownLimits, repr=False)
    _refreshes: Refreshes = field(factory=Refreshes, repr=False)
    _assigning: set[str] = field(factory=set)  # groups for which a target is computed in time slices
    _unreadable: set[str] = field(factory=set)  # groups whose unreadable document was logged

    verbs: ClassVar[Verbs] = VERBS

    def __attrs_post_init__(self) -> None:
        self.routing = Routing(self.membership, self.processes)
        machines = Machines(GROUP, self._new, self._read, fatal=(FencedInstanceId,))
        self.runtime = Runtime(machines, self._storage, self.routing)

    @property
    def storage(self) -> Storage:
        """The storage of documents and committed offsets."""
        return self._storage

    @storage.setter
    def storage(self, storage: Storage) -> None:
        self._storage = self.runtime.storage = storage

    @property
    def limits(self) -> GroupLimits:
        """The settings of groups."""
        return classic_limits_of(self.config)

    def consumer_limits(self, group_id: str) -> ConsumerLimits:
        """Return the settings of a consumer group: its own, else the broker's."""
        return self._limits.of(self.config, self.settings, group_id)

    def share_limits(self, group_id: str) -> ShareGroupLimits:
        """Return the settings for the members of a share group: its own, else the broker's."""
        return share_limits_of(self.config, self.settings.get(group_id, {}))

    async def _topics(self) -> Topics:
        """Return the existing topics as groups see them."""
        return self._known.see(await self.storage.topics())

    def _known_topics(self, group_id: str) -> Topics | None:
        """Return the topics for a group that this process runs, if they need not be waited for."""
        topics = self.storage.known_topics() if self.routing.is_own(group_id) else None
        return None if topics is None else self._known.see(topics)

    async def run(self) -> None:
        """Load all saved groups, again after each change of the membership, and handle their timeouts, forever."""
        await self.runtime.run()

    def _new(self, group_id: str) -> GroupMachine:
        return new_machine(group_id, self.limits, self.clock)

    def _read(self, group_id: str, document: bytes, parts: Mapping[str, bytes]) -> GroupMachine:
        limits, share_limits = self.consumer_limits(group_id), self.share_limits(group_id)
        try:
            return read_machine(group_id, document, parts, self.limits, limits, self.clock, share_limits)
        except UnreadableDocument as error:
            if group_id not in self._unreadable:
                self._unreadable.add(group_id)
                fields = {"error": error, "group": group_id}
                logger.error("%(error)s: it is not served", fields)  # noqa: TRY400  the traceback adds nothing
            raise CoordinatorNotAvailable(str(error)) from None

    # --- Members ----------------------------------------------------------------------------------------

    @VERBS.add(waits=True)
    async def join(self, group_id: str, join: Join, parked: Parked) -> Joined:
        """Handle JoinGroup: return when the generation begins. Raises NotCoordinator if `parked` ends the wait.

        In a group with members of the consumer protocol, return immediately.
        """
        _check_group_id(group_id)
        self._check_join(join)
        ticket = Ticket()
        async with self.runtime.hold(group_id) as held:
            group = held.machine.group
            if join.member_id and not held.exists:
                raise UnknownMemberId
            if is_classic := isinstance(group, ClassicGroup):
                group.join(join, ticket, current_ms())
        if not is_classic:
            await self._join_consumer_group(group_id, join, ticket)
        answer = await ticket.wait(parked)
        if isinstance(answer, Joined):
            return answer
        raise NotCoordinator

    @VERBS.add(waits=True)
    async def sync(self, group_id: str, sync: Sync, parked: Parked) -> Synced:
        """Handle SyncGroup: return the member's assignment. Raises NotCoordinator if `parked` ends the wait."""
        _check_group_id(group_id)
        if any(len(each) > self.config.group_max_metadata_bytes for each in sync.assignments.values()):
            raise InvalidRequest("an assignment is larger than group.max.metadata.bytes")
        ticket = Ticket()
        async with self.runtime.hold(group_id) as held:
            group = held.machine.group
            if is_classic := isinstance(group, ClassicGroup):
                group.sync(sync, ticket, current_ms())
        if not is_classic:
            topics = await self._topics()
            async with self.runtime.hold(group_id) as held:
                classic_requests.sync(held.machine.group, sync, topics, ticket, current_ms())
        answer = await ticket.wait(parked)
        if isinstance(answer, Synced):
            return answer
        raise NotCoordinator

    @VERBS.add()
    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> None:
        """Extend a member's session. Raises RebalanceInProgress, and the error if it is not a member."""
        if self.heartbeat_now(group_id, member_id, group_instance_id, generation_id):
            return
        beat = classic_requests.ClassicBeat(member_id, group_instance_id, generation_id)
        async with self.runtime.hold(group_id) as held:
            group = held.machine.group
            if is_classic := isinstance(group, ClassicGroup):
                classic_requests.heartbeat(group, beat, {}, current_ms())
        if not is_classic:
            topics = await self._topics()
            async with self.runtime.hold(group_id) as held:
                classic_requests.heartbeat(held.machine.group, beat, topics, current_ms())

    def heartbeat_now(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> bool:
        """Do what `heartbeat` does. Return False, and do nothing, if that has to wait or is for another process."""
        # The most frequent request only postpones a deadline, so there is nothing to save and no answer to send.
        _check_group_id(group_id)
        now_ms = current_ms()
        held = self.runtime.at_rest(group_id, now_ms) if self.routing.is_own(group_id) else None
        if held is None or not isinstance(group := held.machine.group, ClassicGroup):
            return False
        if group.may_be_fenced(member_id, group_instance_id):
            return False  # the runtime confirms it in `heartbeat`
        group.heartbeat(member_id, group_instance_id, generation_id, now_ms)
        return True

    @VERBS.add()
    async def leave(self, group_id: str, leaving: Sequence[Leave]) -> list[ErrorCode]:
        """Remove members. Return one error code for each."""
        _check_group_id(group_id)
        async with self.runtime.hold(group_id) as held:
            return classic_requests.leave(held.machine.group, leaving, current_ms())

    async def _join_consumer_group(self, group_id: str, join: Join, ticket: Ticket) -> None:
        topics = await self._topics()
        limits = self.consumer_limits(group_id)
        async with self.runtime.hold(group_id) as held:
            classic_requests.join(held.machine, join, topics, limits, ticket, current_ms())
        await self._assign(group_id, held)

    # --- Members of consumer groups ---------------------------------------------------------------------

    @VERBS.add()
    async def consumer_heartbeat(
        self,
        group_id: str,
        request: Heartbeat,
        matching: frozenset[str] | None = None,
        invalid: InvalidRegularExpression | None = None,
    ) -> ConsumerAnswer:
        """Handle ConsumerGroupHeartbeat. `matching` are the topics that match the request's expression.

        `invalid` is raised instead if the expression does not compile, unless another error precedes it. Raises the
        errors of `ConsumerGroup.check`, UnsupportedAssignor and GroupIdNotFound.
        """
        _check_group_id(group_id)
        topics = await self._topics()
        if (steady := self._consumer_answer(group_id, request, topics)) is not None:
            return steady
        limits = self.consumer_limits(group_id)
        async with self.runtime.hold(group_id) as held:
            resolved = Resolved(matching, invalid)
            beat = consumer_beat(
                held.machine, request, topics, limits, current_ms(), exists=held.exists, resolved=resolved
            )
            answer = self._answer(held.machine.group, beat, topics)
        await self._assign(group_id, held)
        return answer

    def consumer_heartbeat_now(self, group_id: str, request: Heartbeat) -> ConsumerAnswer | None:
        """Do what `consumer_heartbeat` does. Return None, and do nothing, if that does more than extend a session.

        The same holds if it has to wait, or is for another process.
        """
        topics = self._known_topics(group_id)
        return None if topics is None else self._consumer_answer(group_id, request, topics)

    def _consumer_answer(self, group_id: str, request: Heartbeat, topics: Topics) -> ConsumerAnswer | None:
        """Answer a heartbeat that only extends a session. Otherwise return None, and do nothing."""
        now_ms = current_ms()
        held = self.runtime.at_rest(group_id, now_ms)
        if held is None or not isinstance(group := held.machine.group, ConsumerGroup):
            return None
        member = steady_member(group, request, topics)
        if member is None:
            return None
        group.limits = self.consumer_limits(group_id)
        group.extend_session(member, now_ms)
        return self._answer(group, Beat(member.member_id, member.epoch), topics)

    @VERBS.add()
    async def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> ConsumerAnswer:
        """Handle ShareGroupHeartbeat. Raises GroupIdNotFound, and the errors of `ShareGroup.heartbeat`."""
        _check_group_id(group_id)
        topics = await self._topics()
        if (steady := self._share_answer(group_id, request, topics)) is not None:
            return steady
        limits = self.share_limits(group_id)
        async with self.runtime.hold(group_id) as held:
            group = share_group(held.machine, request, limits, exists=held.exists)
            beat = group.heartbeat(request, topics, current_ms())
            if group is not held.machine.group:
                held.machine.convert(group)
            return ConsumerAnswer(beat, limits.heartbeat_interval_ms)

    def share_heartbeat_now(self, group_id: str, request: ShareHeartbeat) -> ConsumerAnswer | None:
        """Do what `share_heartbeat` does, as `consumer_heartbeat_now` does for its group."""
        topics = self._known_topics(group_id)
        return None if topics is None else self._share_answer(group_id, request, topics)

    def _share_answer(self, group_id: str, request: ShareHeartbeat, topics: Topics) -> ConsumerAnswer | None:
        """Answer a heartbeat that only extends a session. Otherwise return None, and do nothing."""
        now_ms = current_ms()
        held = self.runtime.at_rest(group_id, now_ms)
        if held is None or not isinstance(group := held.machine.group, ShareGroup):
            return None
        if not group.is_steady(request, topics):
            return None
        group.limits = limits = self.share_limits(group_id)
        return ConsumerAnswer(group.heartbeat(request, topics, now_ms), limits.heartbeat_interval_ms)

    @VERBS.add()
    async def alter_share(self, group_id: str, *, creates: bool = False) -> None:
        """Check that a share group has no members. If it does not exist, maybe create it.

        Raises GroupIdNotFound, NonEmptyGroup.
        """
        _check_group_id(group_id)
        async with self.runtime.hold(group_id) as held:
            if not held.exists and not creates:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            joining = ShareHeartbeat(member_id="", member_epoch=JOIN_EPOCH)
            group = share_group(held.machine, joining, self.share_limits(group_id), exists=held.exists)
            if group.members:
                raise NonEmptyGroup
            if group is not held.machine.group:
                held.machine.convert(group)
                group.is_unsaved = True

    @VERBS.add()
    async def resolve(self, group_id: str, resolved: Mapping[str, frozenset[str]]) -> None:
        """Set the topics that match expressions of a consumer group."""
        async with self.runtime.hold(group_id) as held:
            if isinstance(group := held.machine.group, ConsumerGroup):
                for expression in resolved.keys() & group.resolved.keys():
                    group.resolve(expression, resolved[expression])

    @VERBS.add()
    async def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise StaleMemberEpoch or UnknownMemberId if a member of a consumer group may not fetch offsets."""
        async with self.runtime.hold(group_id) as held:
            if isinstance(group := refuse_share(held.machine.group), ConsumerGroup):
                check_fetch(group, member_id, member_epoch)

    def _answer(self, group: Group, beat: Beat, topics: Topics) -> ConsumerAnswer:
        if not isinstance(group, ConsumerGroup):  # its last member of the consumer protocol has left
            return ConsumerAnswer(beat, 0)
        interval_ms = self.config.group_consumer_regex_refresh_interval_ms
        stale = self._refreshes.stale(group, topics, current_ms(), interval_ms) if group.resolved else ()
        return ConsumerAnswer(beat, group.limits.heartbeat_interval_ms, stale)

    async def _assign(self, group_id: str, held: HeldGroup) -> None:
        """Compute the target of a large group in time slices, until it is that of the group as it is."""
        group = held.machine.group
        if not isinstance(group, ConsumerGroup) or group_id in self._assigning:
            return
        self._assigning.add(group_id)
        try:
            while group.must_assign(current_ms()) and group.is_large:
                target = await run_in_slices(group.assigning())
                async with self.runtime.hold(group_id) as present:
                    if present.machine.group is not group:
                        return
                    group.apply(target, current_ms())
        finally:
            self._assigning.discard(group_id)

    def _check_join(self, join: Join) -> None:
        shortest, longest = self.config.group_min_session_timeout_ms, self.config.group_max_session_timeout_ms
        if not shortest <= join.session_timeout_ms <= longest:
            raise InvalidSessionTimeout(f"session timeouts are from {shortest} to {longest} ms here")
        if any(is_longer(each, LONGEST_ID_BYTES) for each in join.ids):
            raise InvalidRequest(f"ids are at most {LONGEST_ID_BYTES} bytes long")
        if join.size > self.config.group_max_metadata_bytes:
            raise InvalidRequest("the member's ids and metadata are larger than group.max.metadata.bytes")

    # --- Committed offsets ------------------------------------------------------------------------------

    async def committed(
        self, group_id: str, tps: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets as `Storage.committed` does. Raises GroupIdNotFound for a share group."""
        self.membership.check_coordinates(group_id)
        if (held := self.runtime.held.get(group_id)) is not None:
            refuse_share(held.machine.group)
        return await self.storage.committed(group_id, tps)

    async def unstable(
        self, group_id: str, tps: Collection[TopicPartition] | None
    ) -> Collection[TopicPartition]:
        """Return the partitions whose committed offsets an open transaction may replace, as `Storage.unstable` does.

        The others have the offsets, or later ones, that a caller reads after this.
        """
        self.membership.check_coordinates(group_id)
        return await self.storage.unstable(group_id, tps)

    @VERBS.add()
    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        generation_id: int = NO_GENERATION,
        has_epoch: bool = True,
    ) -> Outcomes:
        """Commit offsets for a member, or for any client if the group has no members.

        In a consumer group the generation is the member epoch, which clients of old versions do not have (`has_epoch`).

        Raises GroupIdNotFound if the request has a generation but the group does not exist, and the errors of
        `ClassicGroup.check_commit`.
        """
        check = CommitCheck(offsets, member_id, group_instance_id, generation_id, has_epoch=has_epoch)
        held, refused = await self._permitted(group_id, check)
        with held.writing():
            outcomes = await self.storage.ack(
                group_id,
                _without(offsets, refused),
                generation_id=_fence(held, generation_id),
                coordinator_epoch=held.epoch,
            )
        self.drop_if_replaced(held, outcomes)
        return {**outcomes, **refused}

    def commit_now(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        generation_id: int = NO_GENERATION,
        has_epoch: bool = True,
    ) -> Outcomes | PendingCommit | None:
        """Commit as `commit` does.

        Return None if something else than the store has to be waited for, or another process runs the group.
        """
        now_ms = current_ms()
        held = self.runtime.at_rest(group_id, now_ms) if self.routing.runs_here(group_id) else None
        if held is None or not held.exists:
            return None
        group = held.machine.group
        if isinstance(group, ClassicGroup):
            if group.may_be_fenced(member_id, group_instance_id):
                return None  # the runtime confirms it in `commit`
            group.check_commit(member_id, group_instance_id, generation_id, now_ms)
        elif isinstance(group, ConsumerGroup):
            check = CommitCheck(offsets, member_id, group_instance_id, generation_id, has_epoch=has_epoch)
            if check.needs_topics(group):
                return None
            check.errors(group, {}, now_ms)
        else:
            return None
        outcomes = self.storage.try_ack(
            group_id, offsets, generation_id=_fence(held, generation_id), coordinator_epoch=held.epoch
        )
        if isinstance(outcomes, PendingAck):
            return PendingCommit(self, held, outcomes)
        if outcomes is not None:
            self.drop_if_replaced(held, outcomes)
        return outcomes

    @VERBS.add()
    async def stage(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        transaction: ProducerTransaction,
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        generation_id: int = NO_GENERATION,
    ) -> Outcomes:
        """Stage offsets that the producer's transaction commits. `Storage.settle` does so.

        Raises InvalidGroupId for the empty id, GroupIdNotFound if the request has a generation but the group does not
        exist, and the errors of `ClassicGroup.check_staging`.
        """
        _check_group_id(group_id)
        check = CommitCheck(offsets, member_id, group_instance_id, generation_id, staging=True)
        held, refused = await self._permitted(group_id, check)
        with held.writing():
            outcomes = await self.storage.stage(
                group_id,
                _without(offsets, refused),
                transaction,
                generation_id=_fence(held, generation_id),
                coordinator_epoch=held.epoch,
            )
        self.drop_if_replaced(held, outcomes)
        return {**outcomes, **refused}

    def drop_if_replaced(self, held: HeldGroup, outcomes: Outcomes) -> None:
        """Drop the group if the store has refused this broker as its coordinator."""
        for outcome in outcomes.values():
            if isinstance(outcome, NotCoordinator):
                self.runtime.drop(held)
                return

    async def _permitted(
        self, group_id: str, check: CommitCheck
    ) -> tuple[HeldGroup, dict[TopicPartition, KafkaError]]:
        """Return the group if it is saved in the state that permits the commit, until the next checkpoint.

        Return the errors of partitions for which a member of a consumer group may not commit, too.
        """
        topics: Topics | None = None
        while True:
            async with self.runtime.hold(group_id) as held:
                group = refuse_share(held.machine.group)
                is_ready = topics is not None or not check.needs_topics(group)
                if not held.exists and check.generation_id > NO_GENERATION:
                    raise GroupIdNotFound(f"Group {group_id} not found.")
                refused = check.errors(group, topics or {}, current_ms()) if is_ready else {}
                if isinstance(group, ClassicGroup):
                    # A group with only committed offsets is saved, too: it is listed, deleted and expired like others.
                    group.is_unsaved |= not held.exists
                permitting = check.state(group)
            if not is_ready:
                topics = await self._topics()
                continue
            # A timeout that has passed, or another request, may have begun the next generation, or have released the
            # member's partitions. The save of that waits for commits in flight: this one must not be among them.
            if held.machine.group is group and check.state(group) == permitting and not held.is_alone:
                return held, refused

    @VERBS.add()
    async def delete_offsets(self, group_id: str, tps: Collection[TopicPartition]) -> Outcomes:
        """Delete committed offsets of topics that the group is not subscribed to.

        The other partitions get GroupSubscribedToTopic. Raises GroupIdNotFound, NonEmptyGroup.
        """
        _check_group_id(group_id)
        async with self.runtime.hold_alone(group_id) as held:
            if not held.exists:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            group = refuse_share(held.machine.group)
            if isinstance(group, ClassicGroup) and not held.machine.is_empty and not group.is_consumer_group:
                raise NonEmptyGroup
            read = {tp for tp in tps if group.is_subscribed(tp.topic)}
            await held.without_writes()
            if deleted := [tp for tp in tps if tp not in read]:
                await self.storage.forget(group_id, deleted)
        return {tp: GroupSubscribedToTopic() if tp in read else None for tp in tps}

    # --- Administration ---------------------------------------------------------------------------------

    @VERBS.add(pack=_packed, unpack=_unpacked)
    async def group(self, group_id: str) -> Group:
        """Return the group. Raises GroupIdNotFound.

        The caller must not keep it across a checkpoint: the next request changes it.
        """
        async with self.runtime.hold(group_id) as held:
            if not held.exists:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            return held.machine.group

    async def groups(self) -> list[Group]:
        """Return all groups, sorted by id. Raises CoordinatorNotAvailable if a process does not answer.

        Groups with unreadable documents are logged and left out.
        """
        groups = await self.own_groups()
        for others in await VERBS.ask_others(self, "own_groups"):
            groups += others
        return sorted(groups, key=lambda group: group.group_id)

    @VERBS.add_of_process(pack=_all_packed, unpack=_all_unpacked)
    async def own_groups(self) -> list[Group]:
        """Return the groups that this process coordinates, sorted by id."""
        found = await in_parallel(self._group_or_none, await self.runtime.own_keys())
        return [group for group in found if group is not None]

    @VERBS.add()
    async def delete(self, group_id: str) -> None:
        """Delete a group and its committed offsets. Raises GroupIdNotFound, NonEmptyGroup."""
        async with self.runtime.hold_alone(group_id) as held:
            if not held.exists:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            if not held.machine.is_empty:
                raise NonEmptyGroup
            await self._delete(group_id, held)

    async def _group_or_none(self, group_id: str) -> Group | None:
        try:
            return await self.group(group_id)
        except (GroupIdNotFound, CoordinatorNotAvailable, NotCoordinator):
            return None

    async def _delete(self, group_id: str, held: HeldGroup) -> None:
        """Delete a group and its committed offsets."""
        # Offsets first: after a crash between the two deletions the group still exists, so it can be deleted again.
        await held.without_writes()
        await self.storage.forget(group_id)
        await self.runtime.delete(held)
        self._refreshes.forget(group_id)
        if isinstance(group := held.machine.group, ClassicGroup):
            group.state = State.DEAD

    # --- Expiry -----------------------------------------------------------------------------------------

    async def expire_offsets(self) -> None:
        """Delete expired offsets, and groups that have none left, periodically and forever."""
        while True:
            await trio.sleep(self.config.offsets_retention_check_interval_ms / 1000)
            for group in await self.own_groups():
                try:
                    await self._expire(group.group_id)
                except KafkaError as error:
                    name = group.group_id
                    fields = {"_group": quoted(name), "group": name, "error": error.message}
                    logger.warning("offsets of group %(_group)s: %(error)s", fields)

    async def _expire(self, group_id: str) -> None:
        async with self.runtime.hold_alone(group_id) as held:
            if not held.exists or not self._can_expire(held):
                return
            await held.without_writes()
            staged = await self.storage.unstable(group_id)  # a transaction keeps them, and the group
            offsets = await self.storage.committed(group_id)
            expired = [
                tp
                for tp, committed in offsets.items()
                if tp not in staged and self._is_expired(held, tp, committed)
            ]
            is_over = not held.machine.is_used and not staged
            if is_over and len(expired) == len(offsets):
                reason = "its committed offsets have expired" if offsets else "no committed offsets"
                fields = {"_group": quoted(group_id), "group": group_id, "reason": reason}
                logger.info("group %(_group)s is deleted: it has no members, and %(reason)s", fields)
                await self._delete(group_id, held)
            elif expired:
                expiry_fields = {"_group": quoted(group_id), "group": group_id, "expired": len(expired)}
                logger.info("group %(_group)s: %(expired)d committed offsets have expired", expiry_fields)
                await self.storage.forget(group_id, expired)

    @property
    def _retention_ms(self) -> int:
        return self.config.offsets_retention_minutes * 60_000

    def _can_expire(self, held: HeldGroup) -> bool:
        """Return True if any of the group's offsets could have expired."""
        group = held.machine.group
        if isinstance(group, ShareGroup):
            return False
        if isinstance(group, ConsumerGroup):
            return True
        if group.state is State.EMPTY:
            return group.protocol_type is None or self.clock() - held.machine.since_ms >= self._retention_ms
        return group.state is State.STABLE and group.subscribed_topics is not None

    def _is_expired(self, held: HeldGroup, tp: TopicPartition, committed: OffsetAndMetadata) -> bool:
        """Return True if a committed offset has expired by Kafka's rule.

        Offsets of subscribed topics do not expire. Retention is measured from when the group became empty. If the
        group never had members, or has members that do not subscribe to the topic, it is measured from the commit.
        """
        group = held.machine.group
        if group.is_subscribed(tp.topic):
            return False
        if isinstance(group, ClassicGroup) and group.state is State.EMPTY and group.protocol_type is not None:
            return True
        committed_ms = committed.commit_timestamp_ms
        return committed_ms >= 0 and self.clock() - committed_ms >= self._retention_ms


@define(eq=False)
class PendingCommit:
    """A commit that the store has not answered yet. It counts as a write until it has a result or is abandoned."""

    coordinator: GroupCoordinator
    held: HeldGroup
    acking: PendingAck
    _is_writing: bool = True

    def __attrs_post_init__(self) -> None:
        self.held.begin_write()

    def known_outcomes(self) -> Outcomes | None:
        """Return the outcomes after the store has answered, or None if the caller has to `wait` for the rest."""
        outcomes = self.acking.known_results()
        return None if outcomes is None else self._ended(outcomes)

    async def wait(self) -> Outcomes:
        """Wait for the outcomes."""
        try:
            return self._ended(await self.acking.wait())
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End the commit, since no caller waits for it."""
        self.acking.abandon()
        self._end_write()

    def _ended(self, outcomes: Outcomes) -> Outcomes:
        self._end_write()
        self.coordinator.drop_if_replaced(self.held, outcomes)
        return outcomes

    def _end_write(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self.held.end_write()


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId


def _without(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], refused: Mapping[TopicPartition, KafkaError]
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    return {tp: offset for tp, offset in offsets.items() if tp not in refused} if refused else offsets


def _fence(held: HeldGroup, generation_id: int) -> int:
    """Return the generation by which the store fences a commit. A member epoch is none: the group checks it."""
    return (
        max(generation_id, NO_GENERATION) if isinstance(held.machine.group, ClassicGroup) else NO_GENERATION
    )
