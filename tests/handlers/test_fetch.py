from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.broker.broker import Broker
from korvet.broker.context import handled
from korvet.broker.limits import SMALLEST_ANSWER_BYTES
from korvet.handlers import APIS
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from korvet.protocol.record_batch import parse_batches
from korvet.protocol.schema import ZERO_UUID
from korvet.storage.interface import EpochEnd, LogOffsets, ReadResult, TopicPartition
from tests.handlers.support import (
    T0,
    Shim,
    append,
    ask,
    away,
    batch,
    context,
    create,
    install,
    new_broker,
    reconfigure,
)
from tests.handlers.transactional import TransactionalProducer, coordinating

T1 = TopicPartition("t", 1)
BATCH = len(batch(b"value"))


def request(
    offsets: dict[TopicPartition, int],
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1_000_000,
    partition_max_bytes: int = 1_000_000,
    isolation_level: int = 0,
    epochs: tuple[int, int] = (-1, -1),
    ids: dict[str, UUID] | None = None,
    session: tuple[int, int] = (0, -1),
) -> FetchRequest:
    topics: dict[str, FetchTopic] = {}
    for tp, offset in offsets.items():
        topic_id = (ids or {}).get(tp.topic, ZERO_UUID)
        topic = topics.setdefault(tp.topic, FetchTopic(topic=tp.topic, topic_id=topic_id, partitions=[]))
        topic.partitions.append(
            FetchPartition(
                partition=tp.partition,
                current_leader_epoch=epochs[0],
                last_fetched_epoch=epochs[1],
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
            )
        )
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=list(topics.values()),
    )


async def fetch(
    broker: Broker, offsets: dict[TopicPartition, int], *, version: int = 12, **options: Any
) -> FetchResponse:
    response = await ask(broker, 1, version, request(offsets, **options))
    assert isinstance(response, FetchResponse)
    return response


async def one(broker: Broker, offset: int, **options: Any) -> PartitionData:
    (topic,) = (await fetch(broker, {T0: offset}, **options)).responses
    (partition,) = topic.partitions
    return partition


def base_offsets(partition: PartitionData) -> list[int]:
    assert partition.records is not None
    return [each.base_offset for part in partition.records for each in parse_batches(part)]


async def test_records_from_the_offset_are_returned(broker: Broker) -> None:
    await create(broker)
    for _ in range(3):
        await append(broker)

    partition = await one(broker, 1)

    assert [1, 2] == base_offsets(partition)
    assert (ErrorCode.NONE, 3, 3, 0) == (
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
    )


async def test_whole_batch_that_contains_the_offset_is_returned(broker: Broker) -> None:
    await create(broker)
    await append(broker, T0, b"a", b"b", b"c")

    assert [0] == base_offsets(await one(broker, 2))


async def test_first_batch_is_returned_even_when_it_exceeds_every_limit(broker: Broker) -> None:
    await create(broker)
    await append(broker)
    await append(broker)

    assert [0] == base_offsets(await one(broker, 0, max_bytes=1, partition_max_bytes=1))
    assert [0] == base_offsets(await one(broker, 0, max_bytes=-5, partition_max_bytes=-5, min_bytes=1))


async def test_only_the_first_partition_with_records_may_exceed_the_limits(broker: Broker) -> None:
    await create(broker, partitions=3)
    t2 = TopicPartition("t", 2)
    await append(broker, T1)
    await append(broker, t2)

    (topic,) = (await fetch(broker, {T0: 0, T1: 0, t2: 0}, max_bytes=1)).responses

    assert [[], [0], []] == [base_offsets(each) for each in topic.partitions]


async def test_partition_max_bytes_limits_each_partition(broker: Broker) -> None:
    await create(broker, partitions=2)
    for tp in (T0, T1):
        for _ in range(3):
            await append(broker, tp)

    (topic,) = (await fetch(broker, {T0: 0, T1: 0}, partition_max_bytes=2 * BATCH)).responses

    assert [[0, 1], [0, 1]] == [base_offsets(each) for each in topic.partitions]


async def test_fetch_max_bytes_of_the_broker_limits_the_response(broker: Broker) -> None:
    reconfigure(broker, fetch_max_bytes=1024)
    await create(broker)
    for _ in range(30):
        await append(broker)

    assert 1024 // BATCH == len(base_offsets(await one(broker, 0)))


async def test_records_are_empty_and_never_null(broker: Broker) -> None:
    await create(broker)

    at_the_end = await one(broker, 0)
    outside = await one(broker, 5)

    assert at_the_end.records is not None
    assert outside.records is not None
    assert 0 == len(at_the_end.records) == len(outside.records)


@pytest.mark.parametrize("offset", [-1, 2, 2**62])
async def test_offset_outside_the_log_is_out_of_range(broker: Broker, offset: int) -> None:
    await create(broker)
    await append(broker)

    partition = await one(broker, offset, wait_ms=60_000)

    assert (ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1) == (
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
    )


async def test_failing_partition_does_not_fail_other_partitions(broker: Broker) -> None:
    await create(broker)
    await append(broker)
    none = TopicPartition("none", 0)

    response = await fetch(broker, {T0: 0, T1: 0, none: 0}, wait_ms=60_000, min_bytes=1000)

    assert [
        ("t", [(0, ErrorCode.NONE, 1), (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]),
        ("none", [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]),
    ] == [
        (
            topic.topic,
            [(each.partition_index, each.error_code, len(base_offsets(each))) for each in topic.partitions],
        )
        for topic in response.responses
    ]


async def test_duplicate_partition_is_refused(broker: Broker) -> None:
    await create(broker)
    await append(broker)
    twice = request({T0: 0})
    twice.topics *= 2

    response = await ask(broker, 1, 12, twice)

    assert [ErrorCode.NONE, ErrorCode.INVALID_REQUEST] == [
        topic.partitions[0].error_code for topic in response.responses
    ]


# --- Waiting ---------------------------------------------------------------------------------------------


async def test_fetch_waits_for_records(broker: Broker, autojump_clock: MockClock) -> None:
    await create(broker)
    answers: list[PartitionData] = []

    async def wait() -> None:
        answers.append(await one(broker, 0, wait_ms=60_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        assert [] == answers
        await append(broker)
        await trio.testing.wait_all_tasks_blocked()
        assert [[0]] == [base_offsets(each) for each in answers]

    assert 1.0 == trio.current_time()


async def test_fetch_waits_until_min_bytes_are_available(broker: Broker, autojump_clock: MockClock) -> None:
    await create(broker)
    answers: list[PartitionData] = []

    async def wait() -> None:
        answers.append(await one(broker, 0, wait_ms=60_000, min_bytes=2 * BATCH))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        await append(broker)
        await trio.sleep(1)
        assert [] == answers
        await append(broker)

    assert [[0, 1]] == [base_offsets(each) for each in answers]


async def test_available_records_are_returned_after_max_wait(
    broker: Broker, autojump_clock: MockClock
) -> None:
    await create(broker)
    await append(broker)

    partition = await one(broker, 0, wait_ms=5000, min_bytes=10_000)

    assert [0] == base_offsets(partition)
    assert 5.0 == trio.current_time()


async def test_fetch_does_not_wait_when_partition_max_bytes_is_reached(
    broker: Broker, autojump_clock: MockClock
) -> None:
    """A consumer with fetch.min.bytes=1 MB, and 1 MB for a partition, is served as fast as it reads."""
    await create(broker)
    for _ in range(10):
        await append(broker)
    began = trio.current_time()
    limits = {"partition_max_bytes": 4 * BATCH + 5, "min_bytes": 4 * BATCH + 5, "wait_ms": 5000}

    assert [0, 1, 2, 3] == base_offsets(await one(broker, 0, **limits))
    assert trio.current_time() == began
    assert [8, 9] == base_offsets(await one(broker, 8, **limits))
    assert trio.current_time() == began + 5


async def test_fetch_does_not_wait_when_min_bytes_exceeds_max_bytes(
    broker: Broker, autojump_clock: MockClock
) -> None:
    await create(broker)
    await append(broker)

    await one(broker, 0, wait_ms=5000, min_bytes=10_000, max_bytes=10)

    assert 0.0 == trio.current_time()


@pytest.mark.parametrize("options", [{"min_bytes": 0}, {"min_bytes": -1}, {"wait_ms": 0}, {"wait_ms": -1}])
async def test_fetch_without_min_bytes_or_max_wait_does_not_wait(
    broker: Broker, autojump_clock: MockClock, options: dict[str, int]
) -> None:
    await create(broker)

    await one(broker, 0, **{"wait_ms": 5000, **options})

    assert 0.0 == trio.current_time()


async def test_record_appended_between_read_and_wait_is_returned(
    broker: Broker, autojump_clock: MockClock
) -> None:
    await create(broker)
    storage = broker._storage

    async def read(*arguments: Any, **options: Any) -> Any:
        install(broker, storage)
        found = await storage.read(*arguments, **options)
        await append(broker)
        return found

    install(broker, Shim(storage, read=read))

    assert [0] == base_offsets(await one(broker, 0, wait_ms=60_000))
    assert 0.0 == trio.current_time()


async def test_waiting_fetch_reads_only_partitions_that_have_grown(
    broker: Broker, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(broker, partitions=2)
    read, seen = broker._storage.try_read, []

    async def noted(requests: Any, **options: Any) -> Any:
        seen.append(list(requests))
        return read(requests, **options)

    monkeypatch.setattr(broker._storage, "read", noted)
    monkeypatch.setattr(broker._storage, "try_read", lambda *_, **__: None)

    async def append_later() -> None:
        for tp in (T1, T0):
            await trio.sleep(0.1)
            await append(broker, tp)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append_later)
        response = await fetch(broker, {T0: 0, T1: 0}, wait_ms=10_000, min_bytes=BATCH + 1)

    assert [[T0, T1], [T1], [T0, T1]] == seen
    assert [[0], [0]] == [base_offsets(partition) for partition in response.responses[0].partitions]


async def test_read_in_progress_at_the_deadline_is_returned(
    broker: Broker, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(broker)
    read, seen = broker._storage.try_read, []

    async def slow(requests: Any, **options: Any) -> Any:
        seen.append(trio.current_time())
        if len(seen) == 2:
            await trio.sleep(1)
        return read(requests, **options)

    monkeypatch.setattr(broker._storage, "read", slow)
    monkeypatch.setattr(broker._storage, "try_read", lambda *_, **__: None)

    async def append_late() -> None:
        await trio.sleep(4.5)
        await append(broker)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append_late)
        answer = await one(broker, 0, wait_ms=5000)

    assert [0] == base_offsets(answer)
    assert [0, 4.5, 5] == seen


async def test_error_while_waiting_is_returned_immediately(broker: Broker, autojump_clock: MockClock) -> None:
    created = await create(broker)
    answers: list[PartitionData] = []

    async def wait() -> None:
        answers.append(await one(broker, 0, wait_ms=60_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        await broker.delete_topic(created)

    assert [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == [each.error_code for each in answers]
    assert 1.0 == trio.current_time()


async def test_drain_answers_a_waiting_fetch(broker: Broker, autojump_clock: MockClock) -> None:
    await create(broker)
    answers: list[PartitionData] = []

    async def wait() -> None:
        answers.append(await one(broker, 0, wait_ms=60_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        broker.drain()

    assert [ErrorCode.NONE] == [each.error_code for each in answers]
    assert 1.0 == trio.current_time()


async def test_fetch_does_not_wait_while_draining(broker: Broker, autojump_clock: MockClock) -> None:
    await create(broker)
    broker.drain()

    await one(broker, 0, wait_ms=60_000)

    assert 0.0 == trio.current_time()


async def test_waiting_fetch_exposes_its_cancel_scope(broker: Broker, autojump_clock: MockClock) -> None:
    await create(broker)
    told = context(12)
    from korvet.handlers import fetch as handler  # noqa: PLC0415  a module of the same name is a function here

    async with trio.open_nursery() as nursery:
        nursery.start_soon(handler.handle, broker, request({T0: 0}, wait_ms=60_000), told)
        await trio.sleep(1)
        assert told.parked is not None
        told.parked.cancel()

    assert told.parked is None
    assert 1.0 == trio.current_time()


# --- Ids, sessions, epochs, isolation ----------------------------------------------------------------------


async def test_topics_are_found_by_id_from_version_13(broker: Broker) -> None:
    created = await create(broker)
    await append(broker)

    (topic,) = (await fetch(broker, {T0: 0}, version=13, ids={"t": created.topic_id})).responses

    assert (created.topic_id, [0]) == (topic.topic_id, base_offsets(topic.partitions[0]))


@pytest.mark.parametrize("topic_id", [uuid4(), ZERO_UUID], ids=["unknown", "zero"])
async def test_unknown_topic_id_is_refused(broker: Broker, topic_id: UUID) -> None:
    await create(broker)

    (topic,) = (await fetch(broker, {T0: 0}, version=13, ids={"t": topic_id}, wait_ms=60_000)).responses

    assert (topic_id, ErrorCode.UNKNOWN_TOPIC_ID) == (topic.topic_id, topic.partitions[0].error_code)


async def test_old_id_of_a_recreated_topic_is_unknown(broker: Broker) -> None:
    old = await create(broker)
    await broker.delete_topic(old)
    await create(broker)

    partition = await one(broker, 0, version=13, ids={"t": old.topic_id})

    assert ErrorCode.UNKNOWN_TOPIC_ID == partition.error_code


async def test_request_of_the_final_epoch_begins_no_session(broker: Broker) -> None:
    await create(broker)

    response = await fetch(broker, {T0: 0}, session=(0, -1))

    assert (ErrorCode.NONE, 0, 1) == (response.error_code, response.session_id, len(response.responses))


async def test_foreign_fetch_session_is_not_found(broker: Broker) -> None:
    response = await fetch(broker, {}, session=(17, 3))

    assert (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, []) == (
        response.error_code,
        response.session_id,
        response.responses,
    )


async def test_aborted_transactions_are_listed_only_under_read_committed(broker: Broker) -> None:
    await create(broker)

    assert (await one(broker, 0, isolation_level=0)).aborted_transactions is None
    assert [] == (await one(broker, 0, isolation_level=1)).aborted_transactions


async def test_read_committed_ends_before_an_open_transaction(broker: Broker) -> None:
    await create(broker)
    async with coordinating(broker):
        producer = TransactionalProducer(broker)
        await producer.init()
        await append(broker, T0, b"before")
        await producer.send(b"a")
        await append(broker, T0, b"after")

        committed, uncommitted = [await one(broker, 0, isolation_level=level) for level in (1, 0)]
        await producer.finish(commit=False)
        aborted = await one(broker, 0, isolation_level=1)

    assert [(0, 3, 1)] * 2 == [
        (each.log_start_offset, each.high_watermark, each.last_stable_offset)
        for each in (committed, uncommitted)
    ]
    assert ([0], [0, 1, 2]) == (base_offsets(committed), base_offsets(uncommitted))
    assert 4 == aborted.last_stable_offset
    assert [(producer.producer_id, 1)] == [
        (each.producer_id, each.first_offset) for each in aborted.aborted_transactions or ()
    ]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_end_of_a_transaction_ends_the_wait_of_a_fetch(broker: Broker, commit: bool) -> None:
    await create(broker)
    answers: list[Any] = []
    answered = trio.Event()

    async def read() -> None:
        answers.append(await one(broker, 0, isolation_level=1, wait_ms=60_000, min_bytes=1))
        answered.set()

    async with coordinating(broker), trio.open_nursery() as nursery:
        producer = TransactionalProducer(broker)
        await producer.init()
        await producer.send(b"a")
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert [] == answers
        await producer.finish(commit=commit)
        with trio.fail_after(10):
            await answered.wait()

    assert 2 == answers[0].last_stable_offset


async def test_invalid_isolation_levels_are_refused(broker: Broker) -> None:
    response = await fetch(broker, {T0: 0}, isolation_level=2)

    assert ErrorCode.INVALID_REQUEST == response.error_code


def at_epoch(broker: Broker, epoch: int, ends: dict[int, EpochEnd]) -> None:
    """Let the storage report an epoch, which the memory backend never does."""
    storage = broker._storage

    async def latest(tp: TopicPartition) -> LogOffsets:
        found = await storage.latest(tp)
        return LogOffsets(found.log_start_offset, found.high_watermark, found.last_stable_offset, epoch)

    async def read(requests: Any, **options: Any) -> Any:
        results = await storage.read(requests, **options)
        for tp, result in results.items():
            if isinstance(result, ReadResult):
                results[tp] = ReadResult(result.batches, await latest(tp))
        return results

    async def epoch_end(_: TopicPartition, asked: int) -> EpochEnd:
        return ends.get(asked, EpochEnd(-1, -1))

    verbs: dict[str, Any] = {"latest": latest, "read": read, "epoch_end": epoch_end}
    install(broker, Shim(storage, **verbs, newest_leader_epoch=epoch))


@pytest.mark.parametrize(
    "epoch, error",
    [
        (-1, ErrorCode.NONE),
        (-2, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
@pytest.mark.parametrize("offset", [0, 99], ids=["inside", "outside"])
async def test_current_leader_epoch_is_checked(
    broker: Broker, epoch: int, error: ErrorCode, offset: int
) -> None:
    await create(broker)
    await append(broker)
    at_epoch(broker, 5, {})
    expected = error or (ErrorCode.OFFSET_OUT_OF_RANGE if offset else ErrorCode.NONE)

    partition = await one(broker, offset, epochs=(epoch, -1), wait_ms=60_000)

    assert expected == partition.error_code


async def test_errors_of_existing_partitions_have_null_aborted_transactions(
    broker: Broker,
) -> None:
    await create(broker)

    outside = await one(broker, 7)
    response = await fetch(broker, {TopicPartition("t", 9): 0})

    assert outside.aborted_transactions is None
    assert [] == response.responses[0].partitions[0].aborted_transactions


async def test_topics_without_partitions_are_not_answered(broker: Broker) -> None:
    await create(broker)
    asked = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="t", partitions=[])])

    assert [] == (await ask(broker, 1, 12, asked)).responses


async def test_outdated_clients_get_the_leader_from_version_16(broker: Broker) -> None:
    created = await create(broker)
    at_epoch(broker, 5, {})

    response = await fetch(broker, {T0: 0}, version=16, epochs=(4, -1), ids={"t": created.topic_id})

    leader = response.responses[0].partitions[0].current_leader
    assert leader is not None
    assert (1, 5) == (leader.leader_id, leader.leader_epoch)
    assert [(1, "broker.example", 9092)] == [
        (each.node_id, each.host, each.port) for each in response.node_endpoints
    ]


async def test_diverging_epoch_is_returned(broker: Broker) -> None:
    await create(broker)
    for _ in range(4):
        await append(broker)
    at_epoch(broker, 5, {4: EpochEnd(3, 2)})

    partition = await one(broker, 3, epochs=(5, 4), wait_ms=60_000)

    assert partition.diverging_epoch is not None
    assert (ErrorCode.NONE, 3, 2, []) == (
        partition.error_code,
        partition.diverging_epoch.epoch,
        partition.diverging_epoch.end_offset,
        base_offsets(partition),
    )


async def test_offset_beyond_the_end_of_its_epoch_has_diverged(broker: Broker) -> None:
    await create(broker)
    await append(broker)

    partition = await one(broker, 7, epochs=(0, 0))

    assert partition.diverging_epoch is not None
    assert (0, 1) == (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset)


async def test_unknown_last_fetched_epoch_is_out_of_range(broker: Broker) -> None:
    await create(broker)
    await append(broker)
    at_epoch(broker, 5, {})

    assert ErrorCode.OFFSET_OUT_OF_RANGE == (await one(broker, 0, epochs=(5, 2))).error_code


async def test_matching_last_fetched_epoch_returns_records(broker: Broker) -> None:
    await create(broker)
    await append(broker)

    assert [0] == base_offsets(await one(broker, 0, epochs=(0, 0)))


@pytest.mark.parametrize(
    "version, error", [(9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, ErrorCode.NONE)]
)
async def test_zstd_topics_require_version_10(broker: Broker, version: int, error: ErrorCode) -> None:
    await create(broker, compression_type="zstd")

    assert error == (await one(broker, 0, version=version)).error_code


@pytest.mark.parametrize(
    "version, error", [(5, ErrorCode.NOT_LEADER_OR_FOLLOWER), (6, ErrorCode.KAFKA_STORAGE_ERROR)]
)
async def test_old_clients_get_storage_errors_as_not_leader_or_follower(
    version: int, error: ErrorCode
) -> None:
    broker = await new_broker()
    install(broker, Shim(broker._storage, topic=away))

    assert error == (await one(broker, 0, version=version)).error_code


# --- What all answers together may take -------------------------------------------------------------------------


async def test_response_is_smaller_when_little_of_the_byte_budget_remains() -> None:
    broker = await new_broker(queued_max_response_bytes=4 * SMALLEST_ANSWER_BYTES)
    await create(broker)
    for _ in range(8):
        await append(broker, T0, b"x" * (SMALLEST_ANSWER_BYTES // 2 - 200))
    seen = context(12)
    answer = await handled(
        APIS[1].handle(broker, request({T0: 0}, min_bytes=1_000_000, wait_ms=60_000), seen)
    )
    size = sum(map(len, answer.responses[0].partitions[0].records))

    assert SMALLEST_ANSWER_BYTES // 2 < size <= SMALLEST_ANSWER_BYTES
    assert size == seen.answer_bytes == broker.answers.taken


async def test_empty_fetch_takes_no_bytes_of_the_budget() -> None:
    broker = await new_broker()
    await create(broker)
    await ask(broker, 1, 12, request({T0: 0}))

    assert 0 == broker.answers.taken
