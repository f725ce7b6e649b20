"""The coordinator: every group's state machine, one request at a time, with the clock and the store around it.

A group is loaded from its document when it is first asked for, and lives in memory from then on. Whoever asks
something of it holds its lock meanwhile. What has changed is saved, by compare-and-set, before anybody is told;
where that fails the group is dropped, whoever waits is told to try again, and the next request loads what the store
holds. That is all there is to a store that was away, to another broker that coordinated the group meanwhile,
and to a broker that was killed: members go on heartbeating in the generation that was saved last.

Positions go to the store beside the lock, so that commits do not wait for each other. A new generation is
not saved while commits of the one before are on their way, and the store refuses commits of generations that are
older than one it has seen.

`run` does what becomes due, `expire_positions` deletes positions that nobody has wanted for
`offsets.retention.minutes`; both go on for ever, and belong under `korvet.tasks.supervise`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from heapq import heappop, heappush

import trio
from attrs import define, field

from korvet.config import Config
from korvet.groups.classic import ClassicGroup
from korvet.groups.deadlines import NEVER
from korvet.groups.document import UnreadableDocument, read, written
from korvet.groups.members import Answer, GroupLimits, Join, Joined, Leave, State, Sync, Synced
from korvet.leases import Leases
from korvet.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    KafkaError,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
)
from korvet.protocol.text import LONGEST_ID_BYTES, is_longer, quoted
from korvet.storage.interface import DocumentConflict, OffsetAndMetadata, Storage, TopicPartition
from korvet.tasks import in_parallel

logger = logging.getLogger(__name__)

KIND = "group"
NO_GENERATION = -1
# After a group could not be saved, when to look at it again if nobody else does.
LOOK_AGAIN_MS = 5000
EXPIRY_LEASE = "expired positions"

# Something that bounds a wait, as `Broker.parked` does: entered with the seconds it may take at most.
Parked = Callable[[float], AbstractContextManager[object]]


@define(eq=False)
class Waiting:
    """The ticket of a join or a sync: set off when it is answered."""

    answer: Answer | None = None
    _answered: trio.Event = field(factory=trio.Event)

    def set(self, answer: Answer) -> None:
        """Answer it."""
        self.answer = answer
        self._answered.set()

    async def wait(self) -> None:
        """Return once it is answered."""
        await self._answered.wait()


@define(eq=False)
class HeldGroup:
    """A group in memory, and what is known of its document."""

    group: ClassicGroup
    lock: trio.Lock = field(factory=trio.Lock)
    is_loaded: bool = False
    version: int = 0  # of the document, 0 where there is none
    saved_state: State | None = None
    saved_generation: int = 0
    since_ms: int = 0
    armed_ms: float = NEVER  # when it is looked at next
    commits: int = 0  # on their way to the store
    _quiet: trio.Event = field(factory=trio.Event)

    @property
    def exists(self) -> bool:
        """Whether the group is there for others: it was saved, or somebody is about to be its member."""
        return self.version > 0 or self.group.state is not State.EMPTY or self.group.has_newcomers

    def is_at_rest(self, now_ms: float) -> bool:
        """Whether nobody holds it, and nothing is due in it."""
        return self.is_loaded and not self.lock.locked() and now_ms < self.group.wake_ms

    def end_commit(self) -> None:
        """One commit has reached the store, or failed."""
        self.commits -= 1
        if not self.commits:
            self._quiet.set()
            self._quiet = trio.Event()

    async def without_commits(self) -> None:
        """Wait until none is on its way. The lock, which is held, keeps new ones from setting out."""
        while self.commits:
            await self._quiet.wait()


@define(eq=False)
class GroupCoordinator:
    """See the module. `clock` answers milliseconds since 1970; timeouts go by Trio's own clock."""

    storage: Storage
    config: Config
    clock: Callable[[], int]
    leases: Leases = field(init=False, repr=False)
    expiry_lease: str = field(default=EXPIRY_LEASE, kw_only=True)
    _groups: dict[str, HeldGroup] = field(factory=dict)
    _due: list[tuple[float, str]] = field(
        factory=list
    )  # a heap; what is no longer armed for then is passed over
    _earlier: trio.Event = field(factory=trio.Event)
    _dropped: set[str] = field(factory=set)  # groups that are to be loaded again before long
    _unreadable: set[str] = field(factory=set)  # groups whose unreadable document was logged

    def __attrs_post_init__(self) -> None:
        self.leases = Leases(self.storage)

    # --- Members ----------------------------------------------------------------------------------------

    async def join(self, group_id: str, join: Join, parked: Parked) -> Joined:
        """Let somebody join; returns when the generation begins. Raises NotCoordinator when the wait is ended."""
        _check_group_id(group_id)
        self._check_join(join)
        ticket = Waiting()
        async with self._hold(group_id) as held:
            if join.member_id and not held.exists:
                raise UnknownMemberId
            held.group.join(join, ticket, _now_ms())
        answer = await _wait(ticket, parked)
        if isinstance(answer, Joined):
            return answer
        raise NotCoordinator

    async def sync(self, group_id: str, sync: Sync, parked: Parked) -> Synced:
        """Give a member its assignment, once there is one. Raises NotCoordinator when the wait is ended."""
        _check_group_id(group_id)
        if any(len(each) > self.config.group_max_metadata_bytes for each in sync.assignments.values()):
            raise InvalidRequest("an assignment is larger than group.max.metadata.bytes")
        ticket = Waiting()
        async with self._hold(group_id) as held:
            held.group.sync(sync, ticket, _now_ms())
        answer = await _wait(ticket, parked)
        if isinstance(answer, Synced):
            return answer
        raise NotCoordinator

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> None:
        """Note that a member is there. Raises RebalanceInProgress, and whatever makes it no member."""
        _check_group_id(group_id)
        now_ms = _now_ms()
        resting = self._groups.get(group_id)
        if resting is not None and resting.is_at_rest(now_ms):
            # Most of what groups are asked. It puts deadlines off and does nothing else: nothing to save or to tell.
            resting.group.heartbeat(member_id, group_instance_id, generation_id, now_ms)
            return
        async with self._hold(group_id) as held:
            held.group.heartbeat(member_id, group_instance_id, generation_id, _now_ms())

    async def leave(self, group_id: str, leaving: Sequence[Leave]) -> list[ErrorCode]:
        """Let members go; one error code for each."""
        _check_group_id(group_id)
        async with self._hold(group_id) as held:
            return held.group.leave(leaving, _now_ms())

    def _check_join(self, join: Join) -> None:
        shortest, longest = self.config.group_min_session_timeout_ms, self.config.group_max_session_timeout_ms
        if not shortest <= join.session_timeout_ms <= longest:
            raise InvalidSessionTimeout(f"session timeouts are from {shortest} to {longest} ms here")
        if any(is_longer(each, LONGEST_ID_BYTES) for each in join.ids):
            raise InvalidRequest(f"ids are at most {LONGEST_ID_BYTES} bytes long")
        if join.size > self.config.group_max_metadata_bytes:
            raise InvalidRequest("what the member sends is larger than group.max.metadata.bytes")

    # --- Positions --------------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        generation_id: int = NO_GENERATION,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit positions of a member, or, in a group that has none, of anybody.

        Raises GroupIdNotFound where a member claims to be of a group that is not there, and what else forbids it.
        """
        async with self._hold(group_id) as held:
            if not held.exists and generation_id > NO_GENERATION:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            held.group.check_commit(member_id, group_instance_id, generation_id, _now_ms())
            # A group of positions alone is a group too: listed, deleted and expired like the others.
            held.group.is_unsaved |= not held.exists
            held.commits += 1
        try:
            return await self.storage.ack(group_id, offsets, generation_id=max(generation_id, NO_GENERATION))
        finally:
            held.end_commit()

    async def delete_positions(
        self, group_id: str, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete positions on topics that the group does not read. Raises GroupIdNotFound, NonEmptyGroup."""
        _check_group_id(group_id)
        async with self._hold(group_id) as held:
            if not held.exists:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            if held.group.state is not State.EMPTY and not held.group.is_consumer_group:
                raise NonEmptyGroup
            read = {tp for tp in tps if held.group.is_subscribed(tp.topic)}
            await held.without_commits()
            if deleted := [tp for tp in tps if tp not in read]:
                await self.storage.forget(group_id, deleted)
        return {tp: GroupSubscribedToTopic() if tp in read else None for tp in tps}

    # --- Administration ---------------------------------------------------------------------------------

    async def group(self, group_id: str) -> ClassicGroup:
        """The group, to be looked at before anything else happens. Raises GroupIdNotFound."""
        async with self._hold(group_id) as held:
            if not held.exists:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            return held.group

    async def groups(self) -> list[ClassicGroup]:
        """All groups, by id; those that cannot be read are left out, and logged."""
        return await self.own_groups()

    async def own_groups(self) -> list[ClassicGroup]:
        """Those that are coordinated here."""
        names = sorted({*await self.storage.documents(KIND), *self._groups})
        found = await in_parallel(self._group_or_none, [name for name in names if self.is_own(name)])
        return [group for group in found if group is not None]

    def is_own(self, group_id: str) -> bool:  # noqa: ARG002  where there are several processes it depends on it
        """Whether that group is coordinated here. All are, where nobody else is there to do it."""
        return True

    async def delete(self, group_id: str) -> None:
        """Delete a group and its positions. Raises GroupIdNotFound, NonEmptyGroup."""
        async with self._hold(group_id) as held:
            if not held.exists:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            if held.group.state is not State.EMPTY:
                raise NonEmptyGroup
            await self._delete(group_id, held)

    async def _group_or_none(self, group_id: str) -> ClassicGroup | None:
        try:
            return await self.group(group_id)
        except (GroupIdNotFound, CoordinatorNotAvailable):
            return None

    async def _delete(self, group_id: str, held: HeldGroup) -> None:
        """Delete a group. Its positions go first: what is left in between is a group, and will be deleted again."""
        await held.without_commits()
        await self.storage.forget(group_id)
        if held.version:
            await self._save(group_id, held, None)
        held.group.state = State.DEAD
        del self._groups[group_id]

    # --- Holding a group --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _hold(self, group_id: str) -> AsyncIterator[HeldGroup]:
        """The group, for this block alone. What has changed by its end is saved, and then told.

        Raises CoordinatorNotAvailable where it cannot be read, and what storage raises.
        """
        while True:
            held = self._groups.get(group_id)
            if held is None:
                held = self._groups[group_id] = HeldGroup(ClassicGroup(group_id, self._limits))
            async with held.lock:
                if self._groups.get(group_id) is not held:
                    continue  # dropped or deleted while we waited
                try:
                    if not held.is_loaded:
                        await self._load(group_id, held)
                    try:
                        yield held
                    finally:
                        if held.group.state is not State.DEAD:
                            await self._settle(group_id, held)
                finally:
                    self._let_go(group_id, held)
                return

    @property
    def _limits(self) -> GroupLimits:
        return GroupLimits(self.config.group_initial_rebalance_delay_ms, self.config.group_max_size)

    async def _load(self, group_id: str, held: HeldGroup) -> None:
        document = await self.storage.load(KIND, group_id)
        if document is not None:
            try:
                held.group, held.since_ms = read(group_id, document.value, self._limits)
            except UnreadableDocument as error:
                if group_id not in self._unreadable:
                    self._unreadable.add(group_id)
                    logger.error("%s: it is not served", error)  # noqa: TRY400  where it is from says nothing
                raise CoordinatorNotAvailable(str(error)) from None
            held.version, held.saved_state = document.version, held.group.state
            held.saved_generation = held.group.generation_id
            held.group.resume(_now_ms())
        held.is_loaded = True

    async def _settle(self, group_id: str, held: HeldGroup) -> None:
        """Save what has changed, and tell whoever waited for it; drop the group when it cannot be saved."""
        group = held.group
        group.tick(_now_ms())
        if group.is_unsaved:
            try:
                if group.generation_id != held.saved_generation:
                    await held.without_commits()
                if (group.state, group.generation_id) != (held.saved_state, held.saved_generation):
                    held.since_ms = self.clock()
                await self._save(group_id, held, written(group, held.since_ms))
            except BaseException:
                self._drop(group_id, held)
                raise
            group.is_unsaved = False
        answers, group.answers = group.answers, []
        for ticket, answer in answers:
            _tell(ticket, answer)
        self._arm(group_id, held)

    async def _save(self, group_id: str, held: HeldGroup, document: bytes | None) -> None:
        try:
            held.version = await self.storage.save(KIND, group_id, document, expected_version=held.version)
        except DocumentConflict:
            logger.warning("group %s was saved by another broker; it is loaded again", quoted(group_id))
            self._drop(group_id, held)
            raise NotCoordinator(f"group {quoted(group_id)} was coordinated by another broker") from None
        held.saved_state, held.saved_generation = held.group.state, held.group.generation_id

    def _drop(self, group_id: str, held: HeldGroup) -> None:
        """Forget what memory knows of a group; whoever waits for it is to try again."""
        held.group.give_up()
        for ticket, answer in held.group.answers:
            _tell(ticket, type(answer)(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        held.group.answers.clear()
        if self._groups.get(group_id) is held:
            del self._groups[group_id]
            self._look_again(group_id)

    def _let_go(self, group_id: str, held: HeldGroup) -> None:
        """Keep nothing of groups that are none: asking for made-up names must not fill the memory."""
        if self._groups.get(group_id) is held and not (held.is_loaded and held.exists) and not held.commits:
            del self._groups[group_id]

    # --- Time -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do in every group what becomes due, for ever. Groups that were saved go on where they stood."""
        await self.own_groups()
        while True:
            with trio.move_on_at(self._due[0][0] / 1000 if self._due else math.inf):
                await self._earlier.wait()
            self._earlier = trio.Event()
            due: list[str] = []
            while self._due and self._due[0][0] <= _now_ms():
                armed_ms, group_id = heappop(self._due)
                held = self._groups.get(group_id)
                if held is None or held.armed_ms == armed_ms:
                    due.append(group_id)
            await in_parallel(self._look_at, due)

    def _arm(self, group_id: str, held: HeldGroup) -> None:
        """See to it that the group is looked at when something becomes due in it."""
        if held.group.wake_ms < held.armed_ms:
            held.armed_ms = held.group.wake_ms
            self._push(held.armed_ms, group_id)

    def _push(self, due_ms: float, group_id: str) -> None:
        heappush(self._due, (due_ms, group_id))
        if self._due[0][0] >= due_ms:
            self._earlier.set()

    def _look_again(self, group_id: str) -> None:
        """A group that is no longer in memory may have members that time out: load it before long."""
        if group_id not in self._dropped:
            self._dropped.add(group_id)
            self._push(_now_ms() + LOOK_AGAIN_MS, group_id)

    async def _look_at(self, group_id: str) -> None:
        """Do what is due in a group: holding it is all that takes."""
        self._dropped.discard(group_id)
        if group_id in self._groups:
            self._groups[group_id].armed_ms = NEVER
        try:
            async with self._hold(group_id):
                pass
        except KafkaError as error:
            logger.warning("group %s could not go on: %s", quoted(group_id), error.message)
            self._look_again(group_id)

    # --- Expiry -----------------------------------------------------------------------------------------

    async def expire_positions(self) -> None:
        """Delete positions that have expired, and groups that have none left, for ever, now and then.

        Of several brokers on one store one does it.
        """
        while True:
            await self.leases.while_held(self.expiry_lease, self._expire_now_and_then, warn_of_rival)

    async def _expire_now_and_then(self) -> None:
        while True:
            await trio.sleep(self.config.offsets_retention_check_interval_ms / 1000)
            for group in await self.own_groups():
                try:
                    await self._expire(group.group_id)
                except KafkaError as error:
                    logger.warning("offsets of group %s: %s", quoted(group.group_id), error.message)

    async def _expire(self, group_id: str) -> None:
        async with self._hold(group_id) as held:
            if not held.exists or not self._can_expire(held):
                return
            await held.without_commits()
            positions = await self.storage.committed(group_id)
            expired = [tp for tp, position in positions.items() if self._is_expired(held, tp, position)]
            is_over = held.group.state is State.EMPTY and not held.group.has_newcomers
            if is_over and len(expired) == len(positions):
                logger.info(
                    "group %s is deleted: it has no members, and its positions have expired", quoted(group_id)
                )
                await self._delete(group_id, held)
            elif expired:
                logger.info("group %s: %d positions have expired", quoted(group_id), len(expired))
                await self.storage.forget(group_id, expired)

    @property
    def _retention_ms(self) -> int:
        return self.config.offsets_retention_minutes * 60_000

    def _can_expire(self, held: HeldGroup) -> bool:
        """Whether any of its positions could have expired."""
        group = held.group
        if group.state is State.EMPTY:
            return group.protocol_type is None or self.clock() - held.since_ms >= self._retention_ms
        return group.state is State.STABLE and group.subscribed_topics is not None

    def _is_expired(self, held: HeldGroup, tp: TopicPartition, position: OffsetAndMetadata) -> bool:
        """Kafka's rule for positions on topics that are not read.

        Time counts from when the group became empty, and from the commit where it never had members, or has some
        that no longer read the topic.
        """
        group = held.group
        if group.is_subscribed(tp.topic):
            return False
        if group.state is State.EMPTY and group.protocol_type is not None:
            return True
        committed_ms = position.commit_timestamp_ms
        return committed_ms >= 0 and self.clock() - committed_ms >= self._retention_ms


def warn_of_rival() -> None:
    """Log that another broker coordinates groups in the same store."""
    logger.warning(
        "another broker uses this store and coordinates consumer groups, too: a group whose members use both brokers"
        " never settles; let clients use one of them (--processes N counts as one)"
    )


def _now_ms() -> int:
    """Trio's clock in whole milliseconds, never below the deadline that a sleep has just reached."""
    return math.ceil(trio.current_time() * 1000 - 1e-6)


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId


async def _wait(ticket: Waiting, parked: Parked) -> Answer | None:
    """The answer; None when the wait was ended from outside.

    How long it may take is the group's to say: every wait in it is ended by a timeout of its own.
    """
    if ticket.answer is None:
        with parked(math.inf):
            await ticket.wait()
    return ticket.answer


def _tell(ticket: object, answer: Answer) -> None:
    if isinstance(ticket, Waiting):
        ticket.set(answer)
