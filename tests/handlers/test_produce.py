from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import uuid4

import pytest
from attrs import evolve

from korvet.broker.broker import Broker
from korvet.broker.context import Disconnect, handled
from korvet.broker.counters import Counters
from korvet.handlers import APIS
from korvet.handlers.produce import PendingProduce
from korvet.protocol.compression import Codec
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from korvet.protocol.record_batch import build_batch
from korvet.storage.interface import ReadRequest, ReadResult, TopicPartition, TransactionEnded
from tests.handlers.support import (
    NOW_MS,
    T0,
    Shim,
    SlowAppend,
    append,
    ask,
    away,
    batch,
    context,
    create,
    install,
    new_broker,
    produce_request,
    reconfigure,
)
from tests.handlers.transactional import TransactionalProducer, coordinating, fetched, settled

T1 = TopicPartition("t", 1)
DAY_MS = 86_400_000
PRODUCER: Final[dict[str, Any]] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


async def produce(
    broker: Broker, partitions: dict[TopicPartition, Any], *, version: int = 9, **options: Any
) -> list[PartitionProduceResponse]:
    """Return the responses of all partitions, in the order of the request."""
    response = await ask(broker, 0, version, produce_request(partitions, **options))
    return [each for topic in response.responses for each in topic.partition_responses]


async def one(broker: Broker, records: Any, **options: Any) -> PartitionProduceResponse:
    (answer,) = await produce(broker, {T0: records}, **options)
    return answer


async def stored(broker: Broker, tp: TopicPartition = T0) -> list[tuple[int, int]]:
    """Return base offset and number of records of every batch."""
    results = await broker._storage.read({tp: ReadRequest(0, 1_000_000)}, max_bytes=1_000_000)
    result = results[tp]
    assert isinstance(result, ReadResult)
    return [(header.base_offset, header.records) for header in result.batches.headers()]


async def test_base_offset_is_returned(broker: Broker) -> None:
    await create(broker)

    first = await one(broker, batch(b"a", b"b"))
    second = await one(broker, batch(b"c"))

    assert (ErrorCode.NONE, 0, -1, 0) == (
        first.error_code,
        first.base_offset,
        first.log_append_time_ms,
        first.log_start_offset,
    )
    assert 2 == second.base_offset
    assert [(0, 2), (2, 1)] == await stored(broker)


async def test_log_append_time_is_returned(broker: Broker) -> None:
    await create(broker, message_timestamp_type="LogAppendTime")

    assert NOW_MS == (await one(broker, batch())).log_append_time_ms


async def test_failing_partition_does_not_fail_other_partitions(broker: Broker) -> None:
    await create(broker, partitions=2)
    corrupt = batch()
    corrupt[-1] ^= 1

    answers = await produce(broker, {T0: corrupt, T1: batch(), TopicPartition("none", 0): batch()})

    assert [
        (0, ErrorCode.CORRUPT_MESSAGE, -1),
        (1, ErrorCode.NONE, 0),
        (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ] == [(each.index, each.error_code, each.base_offset) for each in answers]
    assert [] == await stored(broker)


@pytest.mark.parametrize("index", [-1, 1, 2**31 - 1])
async def test_missing_partitions_are_unknown(broker: Broker, index: int) -> None:
    await create(broker)

    (answer,) = await produce(broker, {TopicPartition("t", index): batch()})

    assert (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1) == (
        answer.error_code,
        answer.base_offset,
        answer.log_start_offset,
    )


@pytest.mark.parametrize(
    "records, error",
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (batch(base_offset=1), ErrorCode.INVALID_RECORD),
        (batch(is_control=True), ErrorCode.INVALID_RECORD),
        (batch(producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (batch(timestamp_type=1), ErrorCode.INVALID_TIMESTAMP),
        (batch()[:-1], ErrorCode.INVALID_RECORD),
        (batch()[:16] + b"\x01" + batch()[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch()[:16] + b"\x03" + batch()[17:], ErrorCode.CORRUPT_MESSAGE),
        (batch(is_transactional=True), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
    ids=[
        "null",
        "empty",
        "two batches",
        "base offset",
        "control",
        "no sequence",
        "log append time",
        "truncated",
        "magic 1",
        "magic 3",
        "transactional",
    ],
)
async def test_invalid_batches_are_refused(broker: Broker, records: bytes | None, error: ErrorCode) -> None:
    await create(broker)

    answer = await one(broker, records)

    assert (error, -1) == (answer.error_code, answer.base_offset)
    assert [] == await stored(broker)


async def test_batches_larger_than_max_message_bytes_are_refused(broker: Broker) -> None:
    await create(broker, partitions=2, max_message_bytes="200")

    answers = await produce(broker, {T0: batch(b"x" * 200), T1: batch(b"x")})

    assert [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NONE] == [each.error_code for each in answers]


async def test_batches_of_too_many_records_are_refused_as_too_large(broker: Broker) -> None:
    reconfigure(broker, batch_max_records=2)
    await create(broker)

    assert ErrorCode.NONE == (await one(broker, batch(b"a", b"b"))).error_code
    assert ErrorCode.MESSAGE_TOO_LARGE == (await one(broker, batch(b"a", b"b", b"c"))).error_code


@pytest.mark.parametrize("version, error", [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)])
async def test_zstd_is_accepted_from_version_7(broker: Broker, version: int, error: ErrorCode) -> None:
    await create(broker)

    assert error == (await one(broker, batch(codec=Codec.ZSTD), version=version)).error_code


@pytest.mark.parametrize("acks", [-2, 2, 32767])
async def test_invalid_acks_are_refused(broker: Broker, acks: int) -> None:
    await create(broker)

    answer = await one(broker, batch(), acks=acks)

    assert (ErrorCode.INVALID_REQUIRED_ACKS, -1) == (answer.error_code, answer.base_offset)
    assert [] == await stored(broker)


async def test_acks_0_gets_no_response(broker: Broker) -> None:
    await create(broker)

    assert await ask(broker, 0, 9, produce_request({T0: batch()}, acks=0)) is None
    assert [(0, 1)] == await stored(broker)


async def test_error_with_acks_0_closes_the_connection(broker: Broker) -> None:
    await create(broker)

    with pytest.raises(Disconnect, match="'t' 9: UNKNOWN_TOPIC_OR_PARTITION"):
        await ask(broker, 0, 9, produce_request({TopicPartition("t", 9): batch(), T0: batch()}, acks=0))

    assert [(0, 1)] == await stored(broker)


async def test_internal_topics_are_refused(broker: Broker) -> None:
    await create(broker, "__consumer_offsets")

    (answer,) = await produce(broker, {TopicPartition("__consumer_offsets", 0): batch()})

    assert ErrorCode.INVALID_TOPIC_EXCEPTION == answer.error_code


async def test_duplicate_partitions_are_refused(broker: Broker) -> None:
    await create(broker)
    data = [PartitionProduceData(index=0, records=(memoryview(batch()),)) for _ in range(2)]
    request = ProduceRequest(
        acks=-1, timeout_ms=0, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )

    response = await ask(broker, 0, 9, request)

    assert [ErrorCode.INVALID_REQUEST] * 2 == [
        each.error_code for each in response.responses[0].partition_responses
    ]
    assert [] == await stored(broker)


async def test_duplicate_batch_gets_the_response_of_the_first(broker: Broker) -> None:
    await create(broker)
    header = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}

    first = await one(broker, batch(b"a", b"b", **header))
    again = await one(broker, batch(b"a", b"b", **header))
    gap = await one(broker, batch(b"c", **{**header, "base_sequence": 9}))

    assert (ErrorCode.NONE, 0) == (first.error_code, first.base_offset)
    assert (ErrorCode.NONE, 0) == (again.error_code, again.base_offset)
    assert (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1) == (gap.error_code, gap.base_offset)
    assert [(0, 2)] == await stored(broker)


async def test_records_with_timestamps_out_of_bounds_are_listed(broker: Broker) -> None:
    await create(broker, message_timestamp_before_max_ms=str(DAY_MS), message_timestamp_after_max_ms="1000")
    times = [NOW_MS, NOW_MS - DAY_MS - 1, NOW_MS + 1001, -1, NOW_MS - DAY_MS, NOW_MS + 1000]

    answer = await one(broker, batch(*[b"v"] * 6, timestamps=times))

    assert (ErrorCode.INVALID_TIMESTAMP, [1, 2]) == (
        answer.error_code,
        [each.batch_index for each in answer.record_errors],
    )
    assert [] == await stored(broker)


@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_records_without_key_for_a_compacted_topic_are_listed(
    broker: Broker, policy: str, codec: Codec
) -> None:
    await create(broker, cleanup_policy=policy)
    await create(broker, "other")
    keys = [b"a", None, b"", None]
    records = [(index, NOW_MS, key, b"v", ()) for index, key in enumerate(keys)]

    answer, neighbour = await produce(
        broker, {T0: build_batch(records, codec=codec), TopicPartition("other", 0): batch()}
    )

    assert (ErrorCode.INVALID_RECORD, -1) == (answer.error_code, answer.base_offset)
    assert [1, 3] == [each.batch_index for each in answer.record_errors]
    assert "Compacted topic cannot accept message without key in topic partition t-0." == answer.error_message
    assert ErrorCode.NONE == neighbour.error_code
    assert [] == await stored(broker)


async def test_compacted_topic_accepts_tombstones_and_empty_keys(broker: Broker) -> None:
    await create(broker, cleanup_policy="compact")
    records = [(0, NOW_MS, b"", b"v", ()), (1, NOW_MS, b"a", None, ())]

    assert ErrorCode.NONE == (await one(broker, build_batch(records))).error_code


async def test_records_without_key_are_refused_after_an_alteration_to_compact(broker: Broker) -> None:
    topic = await create(broker)
    before = await one(broker, batch())
    await broker._storage.alter_topic(topic, settings={**topic.settings, "cleanup.policy": "compact"})
    after = await one(broker, batch(), version=3)

    assert [ErrorCode.NONE, ErrorCode.INVALID_RECORD] == [before.error_code, after.error_code]


async def test_timestamps_are_not_checked_under_log_append_time(broker: Broker) -> None:
    await create(broker, message_timestamp_after_max_ms="0", message_timestamp_type="LogAppendTime")

    assert ErrorCode.NONE == (await one(broker, batch(timestamps=[NOW_MS + 5]))).error_code


async def test_error_message_contains_the_limit(broker: Broker) -> None:
    await create(broker, max_message_bytes="10")

    assert "10" in str((await one(broker, batch())).error_message)


async def test_unreachable_storage_is_a_retriable_error(broker: Broker) -> None:
    install(broker, Shim(broker._storage, topic=away))

    assert ErrorCode.KAFKA_STORAGE_ERROR == (await one(broker, batch())).error_code


async def begun(broker: Broker, **options: Any) -> tuple[PendingProduce, SlowAppend]:
    """Return the pending response to a Produce whose results are not known, and its append."""
    appends: list[SlowAppend] = []

    async def begin_append(batches: Any, **options: Any) -> SlowAppend:
        appends.append(SlowAppend(await storage.append(batches, **options)))
        return appends[-1]

    await create(broker)
    storage = broker._storage
    install(broker, Shim(storage, begin_append=begin_append))
    response = await handled(APIS[0].handle(broker, produce_request({T0: batch()}, **options), context(9)))
    assert isinstance(response, PendingProduce)
    return response, appends[0]


async def test_response_is_pending_while_the_store_appends(broker: Broker) -> None:
    response, append = await begun(broker)
    append.done.set()
    (partition,) = (await response.wait()).responses[0].partition_responses  # type: ignore[union-attr]

    assert (0, ErrorCode.NONE) == (partition.base_offset, partition.error_code)


async def test_pending_produce_with_acks_0_has_no_response(broker: Broker) -> None:
    response, append = await begun(broker, acks=0)
    append.done.set()

    assert await response.wait() is None


async def test_abandoned_produce_abandons_its_append(broker: Broker) -> None:
    response, append = await begun(broker)
    response.abandon()

    assert append.is_abandoned


async def test_counters_exclude_duplicates(broker: Broker) -> None:
    seen = []

    class Stored(Counters):
        def stored(self, topic: str, records: int, size: int) -> None:
            seen.append((topic, records, size))

    broker.counters = Stored()
    await create(broker)
    header = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}

    for _ in range(2):
        await append(broker, T0, b"a", b"b", **header)

    assert [("t", 2, len(batch(b"a", b"b", **header)))] == seen


async def test_topics_without_partitions_are_not_answered(broker: Broker) -> None:
    topics = [TopicProduceData(name="t", partition_data=[])]
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics)

    assert [] == (await ask(broker, 0, 11, request)).responses


async def test_broker_whose_session_has_ended_appends_nothing() -> None:
    """Other brokers have declared it dead, and clients have sent to them what it has not answered."""
    broker = await new_broker()
    await create(broker, "t")
    membership = broker.membership
    membership._session_ends_s = 0.0
    assert ErrorCode.NONE == (await one(broker, batch(b"alone"))).error_code

    membership._use({1: membership.own, 2: evolve(membership.own, node_id=2)}, {})
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == (await one(broker, batch(b"with another"))).error_code
    membership._use({2: evolve(membership.own, node_id=2)}, {})
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == (await one(broker, batch(b"declared dead"))).error_code
    membership._session_ends_s = math.inf
    assert ErrorCode.NONE == (await one(broker, batch(b"in session"))).error_code
    assert [(0, 1), (1, 1)] == await stored(broker)


# --- Transactions --------------------------------------------------------------------------------------------


@pytest.fixture
async def coordinated(broker: Broker) -> AsyncIterator[Broker]:
    async with coordinating(broker):
        await create(broker, partitions=2)
        yield broker


async def initialized(broker: Broker, version: int = 2) -> TransactionalProducer:
    producer = TransactionalProducer(broker, version=version)
    await producer.init()
    return producer


async def errors_of(
    producer: TransactionalProducer, *tps: TopicPartition, version: int | None = None
) -> list[ErrorCode]:
    responses = await producer.try_send(b"a", tps=tps or (T0,), version=version)
    return [ErrorCode(each.error_code) for each in responses]


@pytest.mark.parametrize("version", range(3, 13))
async def test_transactional_batches_are_appended(coordinated: Broker, version: int) -> None:
    producer = await initialized(coordinated, 2 if version >= 12 else 1)
    if version < 12:
        await producer.add(T0, T1)

    assert [ErrorCode.NONE] * 2 == await errors_of(producer, T0, T1, version=version)
    assert 0 == (await fetched(coordinated, T1)).last_stable_offset
    await producer.finish()
    assert 2 == (await fetched(coordinated, T1)).last_stable_offset


@pytest.mark.parametrize(
    "version, error",
    [
        (3, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
async def test_partition_that_was_not_added_is_refused_alone(
    coordinated: Broker, version: int, error: ErrorCode
) -> None:
    producer = await initialized(coordinated, 1)
    await producer.add(T0)

    assert [ErrorCode.NONE, error] == await errors_of(producer, T0, T1, version=version)
    assert 0 == (await fetched(coordinated, T1)).high_watermark


async def test_many_partitions_that_were_not_added_cost_no_read_each(broker: Broker) -> None:
    loads: list[object] = []

    async def load(kind: str, key: str) -> object:
        loads.append(key)
        return await storage.load(kind, key)

    async with coordinating(broker):
        await create(broker, partitions=100)
        producer = await initialized(broker, 1)
        tps = [TopicPartition("t", number) for number in range(100)]
        await producer.add(*tps[::2])
        storage = broker._storage
        broker.transactions.storage = Shim(storage, load=load)
        errors = await errors_of(producer, *tps)

    assert [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE] * 50 == errors
    assert len(loads) <= 3


async def test_twelfth_version_adds_the_partitions(coordinated: Broker) -> None:
    producer = await initialized(coordinated)

    assert [ErrorCode.NONE] * 2 == await errors_of(producer, T0, T1)
    found = await coordinated.transactions.describe("x")
    assert ("Ongoing", 2, 2) == (found.state.value, found.version, len(found.partitions))


async def test_transactional_batch_without_transactional_id_refuses_the_request(coordinated: Broker) -> None:
    batches = {T1: batch(), T0: batch(is_transactional=True, **PRODUCER)}

    answers = await produce(coordinated, batches)

    assert [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2 == [each.error_code for each in answers]
    assert 0 == (await fetched(coordinated, T1)).high_watermark


async def test_plain_batch_of_a_request_with_transactional_id_is_plain(coordinated: Broker) -> None:
    answer = await one(coordinated, batch(), transactional_id="x")

    assert ErrorCode.NONE == answer.error_code
    assert 1 == (await fetched(coordinated)).last_stable_offset


async def test_plain_batch_of_a_producer_in_a_transaction_is_refused(coordinated: Broker) -> None:
    producer = await initialized(coordinated)
    await producer.send(b"a")
    plain = batch(producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=1)

    assert ErrorCode.INVALID_TXN_STATE == (await one(coordinated, plain, transactional_id="x")).error_code
    assert ErrorCode.INVALID_TXN_STATE == (await one(coordinated, plain)).error_code


async def test_two_producers_in_a_request_are_refused(coordinated: Broker) -> None:
    batches = {
        T0: batch(is_transactional=True, **PRODUCER),
        T1: batch(is_transactional=True, **{**PRODUCER, "producer_id": 8}),
        TopicPartition("made-up", 0): batch(),
    }

    answers = await produce(coordinated, batches, transactional_id="x", version=12)

    assert [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 3 == [each.error_code for each in answers]


@pytest.mark.parametrize("version", [11, 12])
async def test_unknown_and_foreign_producers_are_refused(coordinated: Broker, version: int) -> None:
    await initialized(coordinated)
    for name in ("x", "made-up"):
        foreign = TransactionalProducer(coordinated, name, producer_id=7, epoch=0)

        assert [ErrorCode.INVALID_PRODUCER_ID_MAPPING] == await errors_of(foreign, version=version)
    empty = TransactionalProducer(coordinated, "", producer_id=7, epoch=0)
    assert [ErrorCode.INVALID_REQUEST] == await errors_of(empty, version=version)


@pytest.mark.parametrize("version", [11, 12])
async def test_fenced_producer_gets_invalid_producer_epoch(coordinated: Broker, version: int) -> None:
    producer = await initialized(coordinated, 1)
    await initialized(coordinated)

    assert [ErrorCode.INVALID_PRODUCER_EPOCH] == await errors_of(producer, version=version)


@pytest.mark.parametrize("version", [11, 12])
async def test_coordinator_that_is_not_available_is_not_enough_replicas(
    coordinated: Broker, version: int
) -> None:
    producer = await initialized(coordinated, 1)
    coordinated.transactions.storage = Shim(coordinated._storage, load=away, save=away)

    assert [ErrorCode.NOT_ENOUGH_REPLICAS] == await errors_of(producer, version=version)


async def prepared(broker: Broker, version: int) -> TransactionalProducer:
    """Return a producer whose transaction ends, while its markers cannot be written."""
    producer = await initialized(broker, version)
    await producer.send(b"a")
    broker.transactions.storage = Shim(broker._storage, write_markers=away)
    await producer.end()
    return producer


@pytest.mark.parametrize(
    "version, error", [(11, ErrorCode.NOT_ENOUGH_REPLICAS), (12, ErrorCode.CONCURRENT_TRANSACTIONS)]
)
async def test_next_transaction_is_refused_while_markers_cannot_be_written(
    coordinated: Broker, version: int, error: ErrorCode
) -> None:
    producer = await prepared(coordinated, 1)

    assert [error] == await errors_of(producer, version=version)


@pytest.mark.usefixtures("autojump_clock")
async def test_next_transaction_waits_for_the_markers_of_the_previous_one(coordinated: Broker) -> None:
    producer = await initialized(coordinated)
    for number in range(5):
        assert 2 * number == await producer.send(b"a")
        assert ErrorCode.NONE == (await producer.end()).error_code


async def test_later_batch_does_not_overtake_a_refused_one(coordinated: Broker) -> None:
    producer = await prepared(coordinated, 2)
    first = producer.batch(T0, b"b")
    producer.sequences[T0] = 1
    later = producer.batch(T0, b"c")

    async def send(data: bytearray) -> ErrorCode:
        (answer,) = await produce(coordinated, {T0: bytearray(data)}, transactional_id="x", version=12)
        return ErrorCode(answer.error_code)

    assert ErrorCode.CONCURRENT_TRANSACTIONS == await send(first)
    coordinated.transactions.storage = coordinated._storage
    await settled(coordinated)
    assert ErrorCode.CONCURRENT_TRANSACTIONS == await send(later)
    assert [ErrorCode.NONE] * 2 == [await send(first), await send(later)]


async def test_outdated_state_is_read_again(coordinated: Broker) -> None:
    """Another process has ended the transaction and begun the next one, with the same epoch."""
    producer = await initialized(coordinated, 1)
    await producer.send(b"a")
    states = coordinated.transactions.states
    outdated = states._cached("x")
    assert outdated is not None
    await producer.finish()
    await producer.add(T0)
    states._note("x", outdated)

    assert [ErrorCode.NONE] == await errors_of(producer)
    await producer.finish(commit=False)
    assert 1 == len((await fetched(coordinated)).aborted_transactions or ())


@pytest.mark.parametrize("times, error", [(1, ErrorCode.NONE), (2, ErrorCode.INVALID_TXN_STATE)])
async def test_batch_that_a_store_has_refused_later_is_appended_once_more(
    coordinated: Broker, times: int, error: ErrorCode
) -> None:
    producer = await initialized(coordinated, 1)
    await producer.add(T0)
    storage = coordinated._storage
    calls: list[Any] = []

    async def begin_append(batches: Any, **options: Any) -> Any:
        calls.append(options["transactions"])
        if len(calls) > times:
            return await storage.begin_append(batches, **options)
        refused = SlowAppend({T0: TransactionEnded()})
        refused.done.set()
        return refused

    install(coordinated, Shim(storage, begin_append=begin_append))

    assert [error] == await errors_of(producer)
    assert 2 == len(calls)


async def test_batch_of_an_ended_transaction_is_refused(coordinated: Broker) -> None:
    producer = await initialized(coordinated, 1)
    await producer.send(b"a")
    states = coordinated.transactions.states
    outdated = states._cached("x")
    assert outdated is not None
    await producer.finish()
    states._note("x", outdated)

    assert [ErrorCode.TRANSACTION_ABORTABLE] == await errors_of(producer)
    assert 2 == (await fetched(coordinated)).high_watermark


async def test_second_generation_begins_with_sequence_zero(coordinated: Broker) -> None:
    producer = await initialized(coordinated)
    producer.sequences[T0] = 1

    assert [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] == await errors_of(producer)


async def test_refused_transactional_batch_with_acks_0_closes_the_connection(coordinated: Broker) -> None:
    request = produce_request({T0: batch(is_transactional=True, **PRODUCER)}, acks=0)

    with pytest.raises(Disconnect, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        await ask(coordinated, 0, 11, request)


async def test_transactional_ids_are_refused_without_transactions(plain: Broker) -> None:
    await create(plain)

    answers = [
        await one(plain, batch(is_transactional=is_transactional, **PRODUCER), transactional_id="x")
        for is_transactional in (True, False)
    ]

    assert [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2 == [each.error_code for each in answers]
    assert [] == await stored(plain)


# --- Topics by id --------------------------------------------------------------------------------------------


async def test_topic_may_be_named_by_id(broker: Broker) -> None:
    topic = await create(broker)

    request = produce_request({T0: batch()}, ids={"t": topic.topic_id})
    response = await ask(broker, 0, 13, by_ids(request))

    (answered,) = response.responses
    assert topic.topic_id == answered.topic_id
    assert [(ErrorCode.NONE, 0)] == [
        (each.error_code, each.base_offset) for each in answered.partition_responses
    ]
    assert [(0, 1)] == await stored(broker)


async def test_unknown_ids_do_not_fail_other_topics(broker: Broker) -> None:
    topic = await create(broker)
    ids = {"t": topic.topic_id, "gone": uuid4(), "other": uuid4()}
    gone, other = TopicPartition("gone", 0), TopicPartition("other", 0)
    request = produce_request({gone: batch(), other: batch(), T0: batch()}, ids=ids)

    response = await ask(broker, 0, 13, by_ids(request))

    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert [(ids["gone"], unknown), (ids["other"], unknown), (topic.topic_id, ErrorCode.NONE)] == [
        (each.topic_id, each.partition_responses[0].error_code) for each in response.responses
    ]


async def test_old_id_of_a_recreated_topic_gets_no_records(broker: Broker) -> None:
    old = await create(broker)
    await broker.delete_topic(old)
    await create(broker)

    (answer,) = await produce(broker, {T0: batch()}, version=13, ids={"t": old.topic_id})

    assert (ErrorCode.UNKNOWN_TOPIC_ID, -1) == (answer.error_code, answer.base_offset)
    assert [] == await stored(broker)


async def test_topic_that_cannot_be_looked_up_gets_the_error_of_the_store(broker: Broker) -> None:
    topic = await create(broker)
    install(broker, Shim(broker._storage, topic_by_id=away))

    (answer,) = await produce(broker, {T0: batch()}, version=13, ids={"t": topic.topic_id})

    assert ErrorCode.KAFKA_STORAGE_ERROR == answer.error_code


async def test_topic_without_an_id_is_unknown_where_ids_are_required(broker: Broker) -> None:
    await create(broker)

    (answer,) = await produce(broker, {T0: batch()}, version=13)

    assert ErrorCode.UNKNOWN_TOPIC_ID == answer.error_code


def by_ids(request: ProduceRequest) -> ProduceRequest:
    """Return the request as the broker receives it from version 13 on."""
    for topic in request.topic_data:
        topic.name = ""
    return request
