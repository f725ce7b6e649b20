"""The group coordinator: runs the groups' state machines with Trio's clock and saves them in the storage.

A group is loaded from its document on the first request and stays in memory from then on. Each request holds the
group's lock. Changes are saved by compare-and-set before any answer is sent. If that fails, the coordinator drops the
group from memory, answers waiting requests with a retriable error, and loads the stored group on the next request.
This one mechanism covers an unavailable store, another broker that coordinated the group, and a broker that was
killed: members continue to heartbeat in the generation that was saved last.

`Membership` says which broker coordinates a group. When that changes, this broker drops the groups that it has lost,
answers their waiting requests with NOT_COORDINATOR, and loads those that it has gained. A broker that loads a group
saves its document once and begins an epoch (`Documents.fence`), so that the store rejects what the previous coordinator
has sent and the network, or a pause of that broker, has delayed: its documents by their versions, its commits by their
epoch. A broker whose session has ended, which others may have declared dead, serves no group until it has renewed its
registration, and then loads its groups again (`Membership.tenure`).

Offsets are committed without holding the lock, so that commits do not wait for each other. A new generation is not
saved while commits of the previous one are in flight, and the storage rejects commits of a generation that is older
than the newest one it has seen.

`run` handles timeouts. `expire_positions` deletes committed offsets that are older than `offsets.retention.minutes`
and belong to topics that the group does not consume. Each broker does it for the groups that it coordinates. Both run
forever, under `korvet.concurrency.tasks.supervise`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from heapq import heappop, heappush

import trio
from attrs import define, field

from korvet.cluster.membership import Membership
from korvet.concurrency.tasks import in_parallel
from korvet.config import Config
from korvet.coordination.deadlines import NEVER
from korvet.groups.classic import ClassicGroup
from korvet.groups.document import UnreadableDocument, read, written
from korvet.groups.members import Answer, GroupLimits, Join, Joined, Leave, State, Sync, Synced
from korvet.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    FencedInstanceId,
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
from korvet.storage.interface import GROUP, DocumentConflict, OffsetAndMetadata, Storage, TopicPartition

logger = logging.getLogger(__name__)

KIND = GROUP
NO_GENERATION = -1
# After a group could not be saved, load it again after this time unless a request loads it before.
LOOK_AGAIN_MS = 5000

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
    tenure: int  # the one of this broker in which the group was loaded
    lock: trio.Lock = field(factory=trio.Lock)
    is_loaded: bool = False
    version: int = 0  # of the document; 0 if there is none
    epoch: int = 0  # of this broker as the group's coordinator
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
    membership: Membership = field(repr=False)
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
        if resting is not None and resting.is_at_rest(now_ms) and self._is_current(resting):
            # The fast path of the most frequent request: it only postpones a deadline, so there is nothing to save and
            # no answer to send, and the lock is not needed.
            with suppress(FencedInstanceId):  # to be confirmed below
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
        """Return committed offsets as `Storage.committed` does."""
        self.membership.check_coordinates(group_id)
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
            outcomes = await self.storage.ack(
                group_id,
                offsets,
                generation_id=max(generation_id, NO_GENERATION),
                coordinator_epoch=held.epoch,
            )
        finally:
            held.end_commit()
        if any(isinstance(outcome, NotCoordinator) for outcome in outcomes.values()):
            self._drop(group_id, held)
        return outcomes

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
        own = [name for name in names if self.is_own(name) and self.membership.coordinates(name)]
        found = await in_parallel(self._group_or_none, own)
        return [group for group in found if group is not None]

    def is_own(self, group_id: str) -> bool:  # noqa: ARG002  used by the override for several processes
        """Return True if this process coordinates the group, provided that its broker does."""
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
        except (GroupIdNotFound, CoordinatorNotAvailable, NotCoordinator):
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

        Raises NotCoordinator if another broker coordinates the group, CoordinatorNotAvailable if the document is
        unreadable or this broker's session has ended, and the errors of the storage.
        """
        while True:
            self.membership.check_coordinates(group_id)
            held = self._groups.get(group_id)
            if held is None:
                group = ClassicGroup(group_id, self._limits)
                held = self._groups[group_id] = HeldGroup(group, self.membership.tenure)
            async with held.lock:
                if self._groups.get(group_id) is not held:
                    continue  # dropped or deleted while we waited
                if not self._is_current(held):
                    self._drop(group_id, held)
                    continue
                try:
                    if not held.is_loaded:
                        await self._load(group_id, held)
                    try:
                        yield held
                    except FencedInstanceId:
                        await self._confirm(group_id, held)
                        raise
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
                    fields = {"error": error, "group": group_id}
                    logger.error("%(error)s: it is not served", fields)  # noqa: TRY400  the traceback adds nothing
                raise CoordinatorNotAvailable(str(error)) from None
            held.version = document.version
            await self._save(group_id, held, document.value)
            held.epoch = await self.storage.fence(KIND, group_id)
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
        if self._groups.get(group_id) is not held or not self._is_current(held):
            self._drop(group_id, held, ErrorCode.NOT_COORDINATOR)
            raise NotCoordinator
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

    async def _confirm(self, group_id: str, held: HeldGroup) -> None:
        """Raise NotCoordinator, and drop the group, if another broker has saved it since.

        Clients end for good after FencedInstanceId, so a coordinator that was replaced must not answer it from memory.
        """
        document = await self.storage.load(KIND, group_id)
        if held.version != (0 if document is None else document.version):
            self._drop(group_id, held, ErrorCode.NOT_COORDINATOR)
            raise NotCoordinator(f"group {quoted(group_id)} was saved by another broker")

    def _is_current(self, held: HeldGroup) -> bool:
        """Return True if this broker has been in session since it loaded the group."""
        return held.tenure == self.membership.tenure and self.membership.is_in_session

    def _drop(
        self, group_id: str, held: HeldGroup, error_code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE
    ) -> None:
        """Remove a group from memory and answer its waiting requests with the error."""
        held.group.give_up()
        for ticket, answer in held.group.answers:
            _notify(ticket, type(answer)(error_code=error_code))
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
        """Load all saved groups, again after each change of the membership, and handle their timeouts, forever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_membership)
            await self._handle_timeouts()

    async def _follow_membership(self) -> None:
        while True:
            changed = self.membership.changed
            for group_id, held in list(self._groups.items()):
                if not (self._is_current(held) and self.membership.coordinates(group_id)):
                    self._drop(group_id, held, ErrorCode.NOT_COORDINATOR)
            try:
                await self.own_groups()
            except* KafkaError:
                logger.warning("the store cannot be read; groups are loaded when they are requested")
            await changed.wait()

    async def _handle_timeouts(self) -> None:
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
        except NotCoordinator:
            pass  # the coordinator handles them
        except KafkaError as error:
            if not self.membership.is_in_session:
                return  # it is loaded again when the session begins again
            fields = {"_group": quoted(group_id), "group": group_id, "error": error.message}
            logger.warning("group %(_group)s: its timeouts could not be handled: %(error)s", fields)
            self._check_again(group_id)

    # --- Expiry -----------------------------------------------------------------------------------------

    async def expire_positions(self) -> None:
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
                expiry_fields = {"_group": quoted(group_id), "group": group_id, "expired": len(expired)}
                logger.info("group %(_group)s: %(expired)d committed offsets have expired", expiry_fields)
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
