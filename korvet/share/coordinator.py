"""The coordinator of share partitions: it loads, changes and saves their states for the requests of members.

`korvet.coordination.runtime` runs the states: a change is saved by compare-and-set before it is answered, and locks
that end release their records. The broker that leads a partition serves its share partitions; if it has several
processes, each state runs in one of them. Another broker may serve the same state for a while after a change of the
membership: the one whose save conflicts loads the state again.

An administrator's change is written to the store by whichever broker gets the request. A session that begins compares
the state in memory with the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, TypeVar
from uuid import UUID

import trio
from attrs import define, field

from korvet.coordination.routing import Processes, Routing, Verbs
from korvet.coordination.runtime import Machines, Runtime, current_ms
from korvet.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidRecordState,
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotLeaderOrFollower,
    detached,
)
from korvet.share.document import UnreadableShare, read, written
from korvet.share.partition import Read, SharePartition
from korvet.storage.interface import DocumentConflict, Storage
from korvet.storage.shares import UNKNOWN, Acknowledged, InFlight, Run, ShareLimits, SharePartitionKey

#: The kind of the documents of share partitions.
SHARE = "share"

VERBS = Verbs(SHARE)

R = TypeVar("R")

# Times that a request loads a state again that another broker, or an administrator, has changed.
ATTEMPTS = 5


class Next(NamedTuple):
    """The next offset that a member may acquire: UNKNOWN before the first fetch, None if too many are in flight.

    `is_new` is True if the record was not delivered yet. `wait_ms` is the time until the next lock ends.
    """

    offset: int | None
    is_new: bool
    wait_ms: float


@define(eq=False)
class ShareMachine:
    """Implements `korvet.coordination.runtime.Machine`."""

    partition: SharePartition
    answers: list[tuple[object, Any]] = field(factory=list)

    is_used: ClassVar[bool] = False
    ends_writes: ClassVar[bool] = False

    @property
    def is_unsaved(self) -> bool:
        """See `Machine.is_unsaved`."""
        return self.partition.is_unsaved

    @property
    def wake_ms(self) -> float:
        """See `Machine.wake_ms`."""
        return self.partition.wake_ms

    def tick(self, now_ms: float) -> None:
        """See `Machine.tick`."""
        self.partition.tick(now_ms)

    def resume(self, now_ms: float) -> None:
        """See `Machine.resume`."""
        self.partition.resume(now_ms)

    def written(self) -> bytes:
        """See `Machine.written`."""
        self.partition.is_unsaved = False
        return written(self.partition)

    def give_up(self, error_code: ErrorCode) -> None:
        """Do nothing: no request waits in a share partition."""


class LeaderRouting(Routing):
    """Runs the share partitions of the partitions that this broker leads on one of its listeners."""

    def check(self, key: str) -> None:  # noqa: ARG002  handlers have checked the leader, on the client's listener
        """Raise CoordinatorNotAvailable if this broker's session has ended."""
        if not self.is_in_session:
            raise CoordinatorNotAvailable("this broker cannot renew its registration in the store")

    def coordinates(self, key: str) -> bool:
        """Return True if this broker leads the partition."""
        try:
            tp = SharePartitionKey.parsed(key).tp
        except ValueError:
            return False
        membership = self.membership
        return any(
            membership.leader_id(tp, listener) == membership.node_id for listener in membership.own.addresses
        )


@define(eq=False)
class ShareCoordinator:
    """See the module. `limits_of` returns the present settings of a group."""

    _storage: Storage
    routing: Routing
    limits_of: Callable[[str], ShareLimits]
    runtime: Runtime[ShareMachine] = field(init=False, repr=False)
    _waiting: dict[str, dict[trio.Event, None]] = field(factory=dict, repr=False)  # in their order

    verbs: ClassVar[Verbs] = VERBS

    def __attrs_post_init__(self) -> None:
        self.runtime = Runtime(Machines(SHARE, self._new, self._read), self._storage, self.routing)

    @property
    def storage(self) -> Storage:
        """The storage of the documents."""
        return self._storage

    @storage.setter
    def storage(self, storage: Storage) -> None:
        self._storage = self.runtime.storage = storage

    async def run(self) -> None:
        """Load the saved states of the partitions that this broker leads, and handle ends of locks, forever."""
        await self.runtime.run()

    def _new(self, key: str) -> ShareMachine:
        return ShareMachine(SharePartition(limits=self._limits(key)))

    def _read(self, key: str, document: bytes, _parts: Mapping[str, bytes]) -> ShareMachine:
        try:
            return ShareMachine(read(document, self._limits(key)))
        except UnreadableShare as error:
            raise KafkaStorageError(f"share partition {key}: {error}") from None

    def _limits(self, key: str) -> ShareLimits:
        try:
            return self.limits_of(SharePartitionKey.parsed(key).group_id)
        except ValueError:
            return ShareLimits()

    # --- Members ----------------------------------------------------------------------------------------

    @VERBS.add()
    async def next(self, key: str, bounds: tuple[int, int] | None = None, *, is_first: bool = False) -> Next:
        """Return where a member may acquire records. `bounds` are the start and the end of the log.

        `is_first` compares the state with the store, since an administrator may have changed it.
        """
        if is_first:
            await self._refresh(key)

        def found(partition: SharePartition) -> Next:
            if bounds is not None:
                partition.archive_below(bounds[0])
                partition.forget_from(bounds[1])
            offset = partition.next_offset()
            return Next(offset, offset == partition.end, partition.wake_ms - current_ms())

        return await self._change(key, found)

    @VERBS.add()
    async def begin(self, key: str, offset: int) -> None:
        """Begin at an offset, unless the group has begun already."""

        def begun(partition: SharePartition) -> None:
            if partition.end == UNKNOWN:
                partition.begin(offset)

        await self._change(key, begun)

    @VERBS.add()
    async def acquire(self, key: str, member_id: str, read_: Read, max_records: int) -> list[Run]:
        """Acquire records for a member. Their runs are in the order of their offsets."""
        return await self._change(
            key, lambda partition: partition.acquire(member_id, read_, max_records, current_ms())
        )

    @VERBS.add()
    async def acknowledge(self, key: str, member_id: str, batches: Sequence[Acknowledged]) -> None:
        """Acknowledge records of a member, all or none. Raises InvalidRequest, InvalidRecordState."""

        # Errors are results: the machine may have released records whose locks have ended, which is saved.
        def acknowledged(partition: SharePartition) -> KafkaError | None:
            if partition.end == UNKNOWN:
                return InvalidRecordState("The group has acquired no record of the partition.")
            try:
                partition.acknowledge(member_id, batches, current_ms())
            except (InvalidRequest, InvalidRecordState) as error:
                return error
            return None

        error = await self._change(key, acknowledged)
        self.notify(key)
        if error is not None:
            raise error

    @VERBS.add()
    async def release(self, key: str, member_id: str) -> None:
        """Release all records of a member."""

        def released(partition: SharePartition) -> None:
            if partition.has_acquired(member_id):
                partition.release(member_id)

        await self._change(key, released)
        self.notify(key)

    async def _change(self, key: str, change: Callable[[SharePartition], R]) -> R:
        """Return the result of a change that is saved. Raises NotLeaderOrFollower if others change the state, too."""
        for _ in range(ATTEMPTS):
            try:
                async with self.runtime.hold(key) as held:
                    partition = held.machine.partition
                    partition.limits = self._limits(key)
                    partition.tick(current_ms())
                    result = change(partition)
            except NotCoordinator:
                continue
            except CoordinatorNotAvailable as error:
                raise NotLeaderOrFollower(error.message) from None
            return result
        raise NotLeaderOrFollower("other brokers change the state of the share partition")

    async def _refresh(self, key: str) -> None:
        """Drop a state in memory that is older than the stored one."""
        held = self.runtime.held.get(key)
        if held is None or not held.is_saved:
            return
        known = held.version
        stored = await self.storage.load(SHARE, key)
        version = 0 if stored is None else stored.version
        if held.version == known and version != known:
            self.runtime.drop(held, NotCoordinator)

    @VERBS.add()
    async def in_flight(self, key: str, most: int) -> InFlight:
        """Return the records in flight, with the first `most` holdings."""
        if key not in self.runtime.held and await self.storage.load(SHARE, key) is None:
            return InFlight(0, [])
        return await self._change(key, lambda partition: partition.holdings(most, current_ms()))

    # --- Waiting ----------------------------------------------------------------------------------------

    def notify(self, key: str) -> None:
        """Wake the requests of this process that wait for records of a share partition."""
        for event in self._waiting.get(key, ()):
            event.set()

    def wait_for(self, keys: Iterable[str], event: trio.Event) -> None:
        """Set the event when records of one of the share partitions are released in this process."""
        for key in keys:
            self._waiting.setdefault(key, {})[event] = None

    def stop_waiting(self, keys: Iterable[str], event: trio.Event) -> None:
        """Undo `wait_for`."""
        for key in keys:
            events = self._waiting.get(key, {})
            events.pop(event, None)
            if not events:
                self._waiting.pop(key, None)

    # --- Administration ---------------------------------------------------------------------------------

    async def stored(self, group_id: str) -> dict[SharePartitionKey, SharePartition | KafkaError]:
        """Return the stored states of a group, or the errors of those that cannot be read."""
        found: dict[SharePartitionKey, SharePartition | KafkaError] = {}
        for key in await self._keys_where(lambda each: each.group_id == group_id):
            document = await self.storage.load(SHARE, str(key))
            if document is not None:
                try:
                    found[key] = self._read(str(key), document.value, {}).partition
                except KafkaError as error:
                    found[key] = detached(error)
        return found

    async def reset(self, key: SharePartitionKey, offset: int) -> None:
        """Let a group continue at an offset, and forget all its records in flight."""
        for _ in range(ATTEMPTS):
            document = await self.storage.load(SHARE, str(key))
            partition = SharePartition(end=offset)
            if document is not None:
                with suppress(UnreadableShare):
                    partition.epoch = read(document.value, ShareLimits()).epoch + 1
            version = 0 if document is None else document.version
            with suppress(DocumentConflict):
                await self.storage.save(SHARE, str(key), written(partition), expected_version=version)
                await self._refresh(str(key))
                return
        raise KafkaStorageError("other brokers change the state of the share partition")

    async def forget_group(self, group_id: str, topic: str | None = None) -> None:
        """Delete the states of a group, in one topic or in all."""
        await self._delete_where(lambda key: key.group_id == group_id and topic in (None, key.tp.topic))

    async def forget_topic(self, topic_id: UUID) -> None:
        """Delete the states of all groups in a topic that was deleted."""
        await self._delete_where(lambda key: key.topic_id == topic_id)

    async def _delete_where(self, is_deleted: Callable[[SharePartitionKey], bool]) -> None:
        for key in await self._keys_where(is_deleted):
            while (document := await self.storage.load(SHARE, str(key))) is not None:
                with suppress(DocumentConflict):
                    await self.storage.save(SHARE, str(key), None, expected_version=document.version)
            await self._refresh(str(key))

    async def _keys_where(self, is_wanted: Callable[[SharePartitionKey], bool]) -> list[SharePartitionKey]:
        found = []
        for text in sorted(await self.storage.documents(SHARE)):
            with suppress(ValueError):
                key = SharePartitionKey.parsed(text)
                if is_wanted(key):
                    found.append(key)
        return found


def share_routing(groups_routing: Routing) -> LeaderRouting:
    """Return the routing of share partitions in the same processes of the same broker."""
    processes: Processes | None = groups_routing.processes
    return LeaderRouting(groups_routing.membership, processes, "share:")
