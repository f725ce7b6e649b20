"""ShareFetch: v1-2.

Behaviour: a member of a share group acknowledges records and acquires others (KIP-932), in its session: a request names
partitions to add, to forget, and to acknowledge. An acquired record is locked for the group's lock duration. The
response has whole record batches, and the ranges of offsets in them that were acquired, with their delivery counts. It
has partitions with records, with acknowledgements and with errors; the first one of a session has all partitions. If no
record can be acquired, the handler waits up to `max_wait_ms`: until partitions grow, records are released, or a lock
ends. READ on the group and on each topic is required.

Session epochs: 0 begins a session, -1 ends it and releases what its member has acquired, as the end of the connection
does. A session belongs to the connection on which it began.

Versions: v2 has the acquire mode (KIP-1206) and renews locks (KIP-1222): a request that renews acquires nothing.

Errors: INVALID_REQUEST; SHARE_SESSION_NOT_FOUND; INVALID_SHARE_SESSION_EPOCH; SHARE_SESSION_LIMIT_REACHED. Of a
partition: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED, NOT_LEADER_OR_FOLLOWER. Of
acknowledgements also INVALID_REQUEST and INVALID_RECORD_STATE: none of the partition's is then done.

Differences: `max_records` is obeyed strictly in both acquire modes, and ranges contain only offsets of existing
records. `batch_size` is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Self

import trio
from attrs import define, field

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.broker.share_requests import NO_LEADER, ShareRequest, share_error
from korvet.broker.share_settings import ShareSettings
from korvet.broker.sharing import Acknowledgements, acknowledgements, validated_member
from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import ErrorCode, InvalidRequest, KafkaError, OffsetOutOfRange
from korvet.protocol.messages.share_fetch import (
    BATCH_OPTIMIZED,
    RECORD_LIMIT,
    AcquiredRecords,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from korvet.protocol.record_batch import parse_batches
from korvet.security.acls import Operation
from korvet.share.coordinator import Next, ShareCoordinator
from korvet.share.partition import Read
from korvet.share.records import batches_of, offsets_of
from korvet.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, Partition, ShareSession
from korvet.storage.interface import IsolationLevel, ReadRequest, ReadResult, TopicPartition, Watch
from korvet.storage.shares import UNKNOWN, Acquisition, Run, SharePartitionKey

# Bytes read for each record that a request may acquire, at first. A read that ends before enough records is no fault.
BYTES_A_RECORD = 1024
LEAST_BYTES = 65_536
# Releases in other processes, and by plain Redis clients, wake no request of this process.
LOOK_AGAIN_S = 1.0


async def handle(broker: Broker, request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse:
    try:
        key = validated_member(request.group_id, request.member_id)
        broker.group(context, key.group_id, Operation.READ)
        _validate(request)
        given = acknowledgements(
            ((topic.topic_id, topic.partitions) for topic in request.topics),
            context.version,
            renews=request.is_renew_ack,
        )
        session = broker.share.session_of(
            context, key, request.share_session_epoch, has_acknowledgements=bool(given)
        )
    except KafkaError as error:
        return ShareFetchResponse(error_code=error.error_code, error_message=error.message)
    return await _Fetch(broker, request, context, session, given).answer()


def _validate(request: ShareFetchRequest) -> None:
    if request.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        raise InvalidRequest("The acquire mode is unknown.")
    limits = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
    if request.is_renew_ack and any(limits):
        raise InvalidRequest("A request that renews locks must have limits of 0.")


@define
class _Found:
    """The acquired records of one partition, and the batches that contain them."""

    key: SharePartitionKey
    runs: list[Run] = field(factory=list)
    records: Sequence[Buffer] = ()


class _Fetch:
    """The state of one request."""

    def __init__(
        self,
        broker: Broker,
        request: ShareFetchRequest,
        context: RequestContext,
        session: ShareSession,
        given: Acknowledgements,
    ) -> None:
        self.broker = broker
        self.request = request
        self.context = context
        self.session = session
        self.given = given
        self.settings: ShareSettings = broker.share.settings(session.key.group_id)
        self.looked_up = ShareRequest(broker, context, session)
        self.is_first = request.share_session_epoch == INITIAL_EPOCH
        self.found: dict[Partition, _Found] = {}
        self.errors: dict[Partition, KafkaError] = {}
        self.named: Collection[Partition] = ()  # in the response, even if there is nothing to say about them
        self.wake_ms = inf  # until the next lock ends
        self.has_other_consumers = False  # that may have records in flight, and notify no broker
        self.room = max(request.max_records, 0)
        self.bytes = max(min(request.max_bytes, broker.config.fetch_max_bytes), 0)

    async def answer(self) -> ShareFetchResponse:
        acknowledged = await self.looked_up.acknowledge(self.given)
        is_last = self.request.share_session_epoch == FINAL_EPOCH
        if is_last:
            await self.broker.share.end(self.context, self.session)
        else:
            self._update_session()
            if self.room and self.bytes and not self.request.is_renew_ack:
                await self._acquire_or_wait(is_answer=bool(acknowledged))
        return self._response(acknowledged)

    def _update_session(self) -> None:
        partitions = self.session.partitions
        for topic in self.request.topics:
            for each in topic.partitions:
                partitions[Partition(topic.topic_id, each.partition_index)] = None
        for forgotten in self.request.forgotten_topics_data:
            for number in forgotten.partitions:
                partitions.pop(Partition(forgotten.topic_id, number), None)

    # --- Waiting ----------------------------------------------------------------------------------------

    async def _acquire_or_wait(self, *, is_answer: bool) -> None:
        keys = await self._keys()
        if self.is_first:
            self.named = keys
        if not keys:
            if not is_answer and not self.errors:
                with self.broker.parked(self.context, self.request.max_wait_ms / 1000):
                    await trio.sleep_forever()
            return
        is_immediate = is_answer or bool(self.errors) or self.request.max_wait_ms <= 0
        if is_immediate:
            await self._acquire(keys, is_last=True)
            return
        texts = [str(key) for key in keys.values()]
        with (
            self.broker.log.watch([key.tp for key in keys.values()]) as watch,
            _Released(self.broker.share.coordinator, texts) as event,
        ):
            if not await self._acquire(keys, is_last=False):
                with self.broker.parked(self.context, self.request.max_wait_ms / 1000):
                    await self._acquire_as_they_grow(keys, watch, event)
                if not self.found and not self.errors:
                    await self._acquire(keys, is_last=True)

    async def _acquire_as_they_grow(
        self, keys: dict[Partition, SharePartitionKey], watch: Watch, released: _Released
    ) -> None:
        while not self.found and not self.errors:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_set_when_grown, watch, released.event)
                with trio.move_on_after(self._patience_s()):
                    await released.event.wait()
                nursery.cancel_scope.cancel()
            released.renew()
            with trio.CancelScope(shield=True):  # what is acquired has to reach the client
                await self._acquire(keys, is_last=False)

    def _patience_s(self) -> float:
        patience_s = max(self.wake_ms, 0) / 1000
        looks_again = self.has_other_consumers or self.broker.groups.processes is not None
        return min(patience_s, LOOK_AGAIN_S) if looks_again else patience_s

    async def _keys(self) -> dict[Partition, SharePartitionKey]:
        keys: dict[Partition, SharePartitionKey] = {}
        for partition in self.session.rotated():
            try:
                keys[partition] = await self.looked_up.find(partition)
            except KafkaError as error:
                self.errors[partition] = error
        return keys

    # --- Acquiring --------------------------------------------------------------------------------------

    async def _acquire(self, keys: dict[Partition, SharePartitionKey], *, is_last: bool) -> bool:
        """Acquire records. Return True if the request can be answered. `is_last` takes less than `min_bytes`."""
        reading = self.broker.share.reading
        self.wake_ms, self.has_other_consumers = inf, False
        for partition, key in keys.items():
            if not self.room:
                break
            text = str(key)
            self.session.share_keys.add(text)
            lock = reading.setdefault(text, trio.Lock())
            try:
                if await self.broker.share.partitions.is_kept(key):
                    await self._acquire_kept(partition, key, is_last=is_last)
                    continue
                async with lock:  # requests that read the same records at once would acquire them only once
                    await self._acquire_from(partition, key, is_last=is_last)
            except KafkaError as error:
                self.errors[partition] = share_error(error)
            finally:
                if not lock.locked() and reading.get(text) is lock:
                    del reading[text]
        self.is_first = False
        return bool(self.found or self.errors)

    async def _acquire_kept(self, partition: Partition, key: SharePartitionKey, *, is_last: bool) -> None:
        """Acquire records of a share partition that the store keeps."""
        share, answers = self.broker.share, self.broker.answers
        reserved = answers.reserve(self.bytes)
        try:
            acquisition = Acquisition(
                self.session.key.member_id,
                self.settings.limits,
                self.room,
                max(reserved, 1),
                1 if is_last else self.request.min_bytes,
                self.settings.isolation_level,
            )
            acquired = await share.partitions.acquire_kept(key, acquisition)
            if acquired is None:
                await share.partitions.open_kept(key, await self._first_offset(key.tp))
                acquired = await share.partitions.acquire_kept(key, acquisition)
        finally:
            answers.release(reserved)
        if acquired is None:
            return
        self.wake_ms = min(self.wake_ms, acquired.wait_ms)
        # Redis notifies no broker when plain clients acknowledge or release records, or their locks end early.
        self.has_other_consumers |= acquired.wait_ms < inf
        if acquired.runs:
            self.room -= sum(run.size for run in acquired.runs)
            self.found[partition] = _Found(key, list(acquired.runs), acquired.batches.buffers)
            self.bytes = max(self.bytes - acquired.batches.size, 0)

    async def _acquire_from(self, partition: Partition, key: SharePartitionKey, *, is_last: bool) -> None:
        coordinator, text = self.broker.share.coordinator, str(key)
        next_ = await coordinator.next(text, is_first=self.is_first)
        if next_.offset == UNKNOWN:
            await coordinator.begin(text, await self._first_offset(key.tp))
            next_ = await coordinator.next(text)
        self.wake_ms = min(self.wake_ms, next_.wait_ms)
        result = await self._read(key, next_)
        if result is None:
            return
        if next_.is_new and not is_last and result.size < min(self.request.min_bytes, self.bytes):
            return
        batches = parse_batches(result.batches.joined())
        offset = next_.offset or 0
        offsets = offsets_of(batches, offset, result.aborted)
        if offsets.end <= offset:
            return
        member_id = self.session.key.member_id
        runs = await coordinator.acquire(text, member_id, Read(offset, offsets.end, offsets.spans), self.room)
        self.wake_ms = min(self.wake_ms, self.settings.limits.lock_ms)
        if not runs:
            return
        self.room -= sum(run.size for run in runs)
        found = self.found[partition] = _Found(key, runs, batches_of(batches, runs))
        self.bytes = max(self.bytes - sum(map(len, found.records)), 0)

    async def _first_offset(self, tp: TopicPartition) -> int:
        """Return the offset at which the group begins."""
        log, settings = self.broker.log, self.settings
        if settings.begins_earliest:
            return (await log.earliest(tp)).offset
        if settings.reset_ms is not None:
            found = await log.seek_ts(tp, self.broker.clock() - settings.reset_ms)
            if found is not None:
                return found.offset
        return (await log.latest(tp)).high_watermark

    async def _read(self, key: SharePartitionKey, next_: Next) -> ReadResult | None:
        """Read at the offset of the next record, or at the log's start if that is later."""
        if next_.offset is None:
            return None
        wanted = min(self.bytes, max(self.room * BYTES_A_RECORD, LEAST_BYTES))
        result = await self._read_at(key.tp, next_.offset, wanted)
        if isinstance(result, OffsetOutOfRange):
            bounds = await self.broker.log.latest(key.tp)
            start = max(bounds.log_start_offset, bounds.trimmed_before)
            again = await self.broker.share.coordinator.next(str(key), (start, bounds.high_watermark))
            if again.offset is None:
                return None
            result = await self._read_at(key.tp, again.offset, wanted)
        if isinstance(result, KafkaError):
            raise result
        return result

    async def _read_at(self, tp: TopicPartition, offset: int, max_bytes: int) -> ReadResult | KafkaError:
        level: IsolationLevel = self.settings.isolation_level
        answers = self.broker.answers
        reserved = answers.reserve(max_bytes)
        try:
            requests = {tp: ReadRequest(offset, max(reserved, 1))}
            return (await self.broker.log.read(requests, max_bytes=max(reserved, 1), isolation_level=level))[
                tp
            ]
        finally:
            answers.release(reserved)

    # --- Answering --------------------------------------------------------------------------------------

    def _response(self, acknowledged: dict[Partition, KafkaError | None]) -> ShareFetchResponse:
        topics: dict[object, ShareFetchableTopicResponse] = {}
        for partition in dict.fromkeys([*acknowledged, *self.errors, *self.found, *self.named]):
            topic = topics.setdefault(
                partition.topic_id, ShareFetchableTopicResponse(topic_id=partition.topic_id, partitions=[])
            )
            topic.partitions.append(self._data(partition, acknowledged.get(partition)))
        leaders = [data.current_leader for topic in topics.values() for data in topic.partitions]
        size = sum(len(each) for found in self.found.values() for each in found.records)
        self.broker.answers.change(size - self.context.answer_bytes)
        self.context.answer_bytes = size
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=self.settings.limits.lock_ms,
            responses=list(topics.values()),
            node_endpoints=self.looked_up.endpoints(leaders),
        )

    def _data(self, partition: Partition, refused: KafkaError | None) -> PartitionData:
        data = PartitionData(
            partition_index=partition.number, current_leader=NO_LEADER, records=(), acquired_records=[]
        )
        if refused is not None:
            data.acknowledge_error_code, data.acknowledge_error_message = refused.error_code, refused.message
            data.current_leader = self.looked_up.leader(partition, refused.error_code)
        error, found = self.errors.get(partition), self.found.get(partition)
        if error is not None:
            data.error_code, data.error_message = error.error_code, error.message
            data.current_leader = self.looked_up.leader(partition, ErrorCode(error.error_code))
        elif found is not None:
            data.records = found.records
            data.acquired_records = [
                AcquiredRecords(first_offset=run.first, last_offset=run.last, delivery_count=run.deliveries)
                for run in found.runs
            ]
        return data


@define(eq=False)
class _Released:
    """Sets `event` when records of share partitions are released in this process, as long as its block runs."""

    coordinator: ShareCoordinator
    keys: list[str]
    event: trio.Event = field(factory=trio.Event)

    def __enter__(self) -> Self:
        self.coordinator.wait_for(self.keys, self.event)
        return self

    def __exit__(self, *_: object) -> None:
        self.coordinator.stop_waiting(self.keys, self.event)

    def renew(self) -> None:
        """Use another event."""
        self.coordinator.stop_waiting(self.keys, self.event)
        self.event = trio.Event()
        self.coordinator.wait_for(self.keys, self.event)


async def _set_when_grown(watch: Watch, event: trio.Event) -> None:
    await watch.wait()
    event.set()
