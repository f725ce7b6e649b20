"""The group coordinator: runs the groups' state machines with Trio's clock and saves them in the storage.

A group is loaded from its document on the first request and stays in memory from then on. Each request holds the
group's lock. Changes are saved by compare-and-set before any answer is sent. If that fails, the coordinator drops the
group from memory, answers waiting requests with a retriable error, and loads the stored group on the next request.
This one mechanism covers an unavailable store, another broker that coordinated the group, and a broker that was
killed: members continue to heartbeat in the generation that was saved last.

Offsets are committed without holding the lock, so that commits do not wait for each other. A new generation is not
saved while commits of the previous one are in flight, and the storage rejects commits of a generation that is older
than the newest one it has seen.

`run` handles timeouts. `expire_positions` deletes committed offsets that are older than `offsets.retention.minutes`
and belong to topics that the group does not consume. Both run forever, under `korvet.concurrency.tasks.supervise`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from heapq import heappop, heappush

import trio
from attrs import define, field

from korvet.concurrency.tasks import in_parallel
from korvet.config import Config
from korvet.groups.classic import ClassicGroup
from korvet.groups.deadlines import NEVER
from korvet.groups.document import UnreadableDocument, read, written
from korvet.groups.members import Answer, GroupLimits, Join, Joined, Leave, State, Sync, Synced
from korvet.maintenance.leases import Leases
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

logger = logging.getLogger(__name__)

KIND = "group"
NO_GENERATION = -1
# After a group could not be saved, load it again after this time unless a request loads it before.
LOOK_AGAIN_MS = 5000
EXPIRY_LEASE = "expired positions"

# A context manager that bounds a wait, as `Broker.parked` does. The argument is the maximum in seconds.
Parked = Callable[[float], AbstractContextManager[object]]


@define(eq=False)
class Waiting:
    """The ticket of a join or a sync: an event that carries the answer."""

    answer: Answer | None = None
    _answered: trio.Event = field(factory=trio.Event)

    def set(self, answer: Answer) -> None:
        """Store the answer and wake the waiting request."""
        self.answer = answer
        self._answered.set()

    async def wait(self) -> None:
        """Wait until the answer is set."""
        await self._answered.wait()


@define(eq=False)
class HeldGroup:
    """A group in memory, and the state of its saved document."""

    group: ClassicGroup
    lock: trio.Lock = field(factory=trio.Lock)
    is_loaded: bool = False
    version: int = 0  # of the document; 0 if there is none
    saved_state: State | None = None
    saved_generation: int = 0
    since_ms: int = 0
    armed_ms: float = NEVER  # time for which `run` has scheduled the group
    commits: int = 0  # in flight to the storage
    _quiet: trio.Event = field(factory=trio.Event)

    @property
    def exists(self) -> bool:
        """True if the group is visible to clients: it was saved, has members, or a client is about to join."""
        return self.version > 0 or self.group.state is not State.EMPTY or self.group.has_newcomers

    def is_at_rest(self, now_ms: float) -> bool:
        """Return True if the group is loaded, no request holds its lock and no timeout has passed."""
        return self.is_loaded and not self.lock.locked() and now_ms < self.group.wake_ms

    def end_commit(self) -> None:
        """Count down the commits in flight after one has succeeded or failed."""
        self.commits -= 1
        if not self.commits:
            self._quiet.set()
            self._quiet = trio.Event()

    async def without_commits(self) -> None:
        """Wait until no commit is in flight. The caller holds the lock, which prevents new ones."""
        while self.commits:
            await self._quiet.wait()


@define(eq=False)
class GroupCoordinator:
    """See the module. `clock` returns milliseconds since 1970; timeouts use Trio's clock."""

    storage: Storage
    config: Config
    clock: Callable[[], int]
    leases: Leases = field(repr=False)
    expiry_lease: str = field(default=EXPIRY_LEASE, kw_only=True)
    _groups: dict[str, HeldGroup] = field(factory=dict)
    _due: list[tuple[float, str]] = field(
        factory=list
    )  # a heap of (ms, group id); `run` skips an entry whose time is no longer the group's armed_ms
    _earlier: trio.Event = field(factory=trio.Event)
    _dropped: set[str] = field(factory=set)  # groups to be loaded again within LOOK_AGAIN_MS
    _unreadable: set[str] = field(factory=set)  # groups whose unreadable document was logged

    # --- Members ----------------------------------------------------------------------------------------

    async def join(self, group_id: str, join: Join, parked: Parked) -> Joined:
        """Handle JoinGroup: return when the generation begins. Raises NotCoordinator if `parked` ends the wait."""
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
        """Handle SyncGroup: return the member's assignment. Raises NotCoordinator if `parked` ends the wait."""
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
        """Extend a member's session. Raises RebalanceInProgress, and the error if it is not a member."""
        _check_group_id(group_id)
        now_ms = _now_ms()
        resting = self._groups.get(group_id)
        if resting is not None and resting.is_at_rest(now_ms):
            # The fast path of the most frequent request: it only postpones a deadline, so there is nothing to save and
            # no answer to send, and the lock is not needed.
            resting.group.heartbeat(member_id, group_instance_id, generation_id, now_ms)
            return
        async with self._hold(group_id) as held:
            held.group.heartbeat(member_id, group_instance_id, generation_id, _now_ms())

    async def leave(self, group_id: str, leaving: Sequence[Leave]) -> list[ErrorCode]:
        """Remove members. Return one error code for each."""
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
            raise InvalidRequest("the member's ids and metadata are larger than group.max.metadata.bytes")

    # --- Committed offsets ------------------------------------------------------------------------------

    async def committed(
        self, group_id: str, tps: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets as `Storage.committed` does: any broker may answer from the store."""
        return await self.storage.committed(group_id, tps)

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        generation_id: int = NO_GENERATION,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets for a member, or for any client if the group has no members.

        Raises GroupIdNotFound if the request has a generation but the group does not exist, and the errors of
        `ClassicGroup.check_commit`.
        """
        async with self._hold(group_id) as held:
            if not held.exists and generation_id > NO_GENERATION:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            held.group.check_commit(member_id, group_instance_id, generation_id, _now_ms())
            # A group with only committed offsets is saved, too, so that it is listed, deleted and expired like others.
            held.group.is_unsaved |= not held.exists
            held.commits += 1
        try:
            return await self.storage.ack(group_id, offsets, generation_id=max(generation_id, NO_GENERATION))
        finally:
            held.end_commit()

    async def delete_positions(
        self, group_id: str, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete committed offsets of topics that the group is not subscribed to.

        The other partitions get GroupSubscribedToTopic. Raises GroupIdNotFound, NonEmptyGroup.
        """
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
        """Return the group. Raises GroupIdNotFound.

        The caller must not keep it across a checkpoint: the next request changes it.
        """
        async with self._hold(group_id) as held:
            if not held.exists:
                raise GroupIdNotFound(f"Group {group_id} not found.")
            return held.group

    async def groups(self) -> list[ClassicGroup]:
        """Return all groups, sorted by id. Groups with unreadable documents are logged and left out."""
        return await self.own_groups()

    async def own_groups(self) -> list[ClassicGroup]:
        """Return the groups that this process coordinates, sorted by id."""
        names = sorted({*await self.storage.documents(KIND), *self._groups})
        found = await in_parallel(self._group_or_none, [name for name in names if self.is_own(name)])
        return [group for group in found if group is not None]

    def is_own(self, group_id: str) -> bool:  # noqa: ARG002  used by the override for several processes
        """Return True if this process coordinates the group. A single process coordinates all groups."""
        return True

    async def delete(self, group_id: str) -> None:
        """Delete a group and its committed offsets. Raises GroupIdNotFound, NonEmptyGroup."""
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
        """Delete a group and its committed offsets."""
        # Offsets first: after a crash between the two deletions the group still exists, so it can be deleted again.
        await held.without_commits()
        await self.storage.forget(group_id)
        if held.version:
            await self._save(group_id, held, None)
        held.group.state = State.DEAD
        del self._groups[group_id]

    # --- Holding a group --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _hold(self, group_id: str) -> AsyncIterator[HeldGroup]:
        """Hold the group's lock for the block, then save its changes and send the answers.

        Raises CoordinatorNotAvailable if the document is unreadable, and the errors of the storage.
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
                    logger.error("%s: it is not served", error)  # noqa: TRY400  the traceback adds nothing
                raise CoordinatorNotAvailable(str(error)) from None
            held.version, held.saved_state = document.version, held.group.state
            held.saved_generation = held.group.generation_id
            held.group.resume(_now_ms())
        held.is_loaded = True

    async def _settle(self, group_id: str, held: HeldGroup) -> None:
        """Save the group if it has changed, then send the answers. Drop the group if it cannot be saved."""
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
            _notify(ticket, answer)
        self._arm(group_id, held)

    async def _save(self, group_id: str, held: HeldGroup, document: bytes | None) -> None:
        try:
            held.version = await self.storage.save(KIND, group_id, document, expected_version=held.version)
        except DocumentConflict:
            fields = {"_group": quoted(group_id), "group": group_id}
            logger.warning("group %(_group)s was saved by another broker; it is loaded again", fields)
            self._drop(group_id, held)
            raise NotCoordinator(f"group {quoted(group_id)} was coordinated by another broker") from None
        held.saved_state, held.saved_generation = held.group.state, held.group.generation_id

    def _drop(self, group_id: str, held: HeldGroup) -> None:
        """Remove a group from memory and answer its waiting requests with COORDINATOR_NOT_AVAILABLE."""
        held.group.give_up()
        for ticket, answer in held.group.answers:
            _notify(ticket, type(answer)(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        held.group.answers.clear()
        if self._groups.get(group_id) is held:
            del self._groups[group_id]
            self._check_again(group_id)

    def _let_go(self, group_id: str, held: HeldGroup) -> None:
        """Remove a group that does not exist from memory."""
        # Requests with made-up group ids must not fill the memory.
        if self._groups.get(group_id) is held and not (held.is_loaded and held.exists) and not held.commits:
            del self._groups[group_id]

    # --- Time -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load all saved groups, then handle their timeouts, forever."""
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
            await in_parallel(self._check, due)

    def _arm(self, group_id: str, held: HeldGroup) -> None:
        """Schedule the group for its next timeout."""
        if held.group.wake_ms < held.armed_ms:
            held.armed_ms = held.group.wake_ms
            self._push(held.armed_ms, group_id)

    def _push(self, due_ms: float, group_id: str) -> None:
        heappush(self._due, (due_ms, group_id))
        if self._due[0][0] >= due_ms:
            self._earlier.set()

    def _check_again(self, group_id: str) -> None:
        """Schedule a dropped group to be loaded again: sessions of its members may time out."""
        if group_id not in self._dropped:
            self._dropped.add(group_id)
            self._push(_now_ms() + LOOK_AGAIN_MS, group_id)

    async def _check(self, group_id: str) -> None:
        """Handle the timeouts of a group that have passed."""
        self._dropped.discard(group_id)
        if group_id in self._groups:
            self._groups[group_id].armed_ms = NEVER
        try:
            async with self._hold(group_id):
                pass  # `_settle` at the end of the block calls `tick`
        except KafkaError as error:
            fields = {"_group": quoted(group_id), "group": group_id, "error": error.message}
            logger.warning("group %(_group)s: its timeouts could not be handled: %(error)s", fields)
            self._check_again(group_id)

    # --- Expiry -----------------------------------------------------------------------------------------

    async def expire_positions(self) -> None:
        """Delete expired offsets, and groups that have none left, periodically and forever.

        If several brokers share a store, only the one that holds the lease does it.
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
                    name = group.group_id
                    fields = {"_group": quoted(name), "group": name, "error": error.message}
                    logger.warning("offsets of group %(_group)s: %(error)s", fields)

    async def _expire(self, group_id: str) -> None:
        async with self._hold(group_id) as held:
            if not held.exists or not self._can_expire(held):
                return
            await held.without_commits()
            positions = await self.storage.committed(group_id)
            expired = [tp for tp, position in positions.items() if self._is_expired(held, tp, position)]
            is_over = held.group.state is State.EMPTY and not held.group.has_newcomers
            if is_over and len(expired) == len(positions):
                reason = "its committed offsets have expired" if positions else "no committed offsets"
                fields = {"_group": quoted(group_id), "group": group_id, "reason": reason}
                logger.info("group %(_group)s is deleted: it has no members, and %(reason)s", fields)
                await self._delete(group_id, held)
            elif expired:
                counts = {"_group": quoted(group_id), "group": group_id, "expired": len(expired)}
                logger.info("group %(_group)s: %(expired)d committed offsets have expired", counts)
                await self.storage.forget(group_id, expired)

    @property
    def _retention_ms(self) -> int:
        return self.config.offsets_retention_minutes * 60_000

    def _can_expire(self, held: HeldGroup) -> bool:
        """Return True if any of the group's offsets could have expired."""
        group = held.group
        if group.state is State.EMPTY:
            return group.protocol_type is None or self.clock() - held.since_ms >= self._retention_ms
        return group.state is State.STABLE and group.subscribed_topics is not None

    def _is_expired(self, held: HeldGroup, tp: TopicPartition, position: OffsetAndMetadata) -> bool:
        """Return True if a committed offset has expired by Kafka's rule.

        Offsets of subscribed topics do not expire. Retention is measured from when the group became empty. If the
        group never had members, or has members that do not subscribe to the topic, it is measured from the commit.
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
    """Return Trio's time in whole milliseconds."""
    # Round up: after a sleep the result must not be below the deadline that the sleep has just reached.
    return math.ceil(trio.current_time() * 1000 - 1e-6)


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId


async def _wait(ticket: Waiting, parked: Parked) -> Answer | None:
    """Return the answer, or None if `parked` ended the wait."""
    # No limit is needed here: one of the group's own timeouts ends every wait in it.
    if ticket.answer is None:
        with parked(math.inf):
            await ticket.wait()
    return ticket.answer


def _notify(ticket: object, answer: Answer) -> None:
    if isinstance(ticket, Waiting):
        ticket.set(answer)
