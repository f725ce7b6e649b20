"""Administration of settings, partitions and records by unmodified clients; settings take effect immediately.

A change through one broker applies to the next record there, and shortly afterwards in another broker on the same
Redis, without a restart of either.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from korvet.broker.topics import SETTINGS
from korvet.protocol.compression import Codec
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.record_batch import build_batch, parse_batches
from tests.clients.admins import ADMINISTRATORS, Administrator, KafkaPythonAdministrator
from tests.clients.interface import Record, eventually
from tests.clients.test_produce import records_of
from tests.processes import KorvetProcess
from tests.support.wire import Wire, fetch_request, fetched, frame_of, produce_request, produced

SET, DELETE, APPEND, SUBTRACT = "SET", "DELETE", "APPEND", "SUBTRACT"
TEN = [Record(value=b"%d" % number) for number in range(10)]


@pytest.fixture(params=ADMINISTRATORS, ids=lambda administrator: administrator.id)
def admin(request: pytest.FixtureRequest, broker: KorvetProcess) -> Administrator:
    """Return each client in turn."""
    made: Administrator = request.param(broker.bootstrap_servers)
    return made


@pytest.fixture
def kafka_python(broker: KorvetProcess) -> KafkaPythonAdministrator:
    return KafkaPythonAdministrator(broker.bootstrap_servers)


@pytest.fixture(scope="module")
def other(broker: KorvetProcess) -> Iterator[KorvetProcess]:
    """Run another broker on the same Redis; in memory, return the same broker."""
    if not is_shared(broker):
        yield broker
        return
    with KorvetProcess(storage=shared_storage(broker), settings=broker.settings) as process:
        yield process


@pytest.fixture(scope="module")
def eager_broker(broker: KorvetProcess) -> Iterator[KorvetProcess]:
    """Run another such broker, whose retention also deletes records that were just appended."""
    settings = {**broker.settings, "log.retention.check.interval.ms": "1"}
    storage = shared_storage(broker) if is_shared(broker) else "memory://"
    with KorvetProcess(storage=storage, settings=settings) as process:
        yield process


def is_shared(broker: KorvetProcess) -> bool:
    """Return True if other brokers can use the same storage."""
    return broker.storage.startswith("embedded:")


def shared_storage(broker: KorvetProcess) -> str:
    """Return the URL of the broker's private server."""
    return f"unix://{broker.storage.removeprefix('embedded:')}/redis.sock"


# --- Settings -----------------------------------------------------------------------------------------------


def test_every_setting_is_described_with_its_source(admin: Administrator, topic: str) -> None:
    admin.create_topic(topic, settings={"retention.ms": "3600000"})

    settings = admin.settings(topic)

    assert sorted(SETTINGS) == sorted(settings)
    retention, largest = settings["retention.ms"], settings["max.message.bytes"]
    assert ("3600000", "DYNAMIC_TOPIC_CONFIG", False) == (
        retention.value,
        retention.source,
        retention.read_only,
    )
    assert ("1048588", "DEFAULT_CONFIG") == (largest.value, largest.source)
    assert "retention.ms" in retention.synonyms
    assert settings["offset.mapping"].read_only


def test_broker_is_described_without_secrets(admin: Administrator) -> None:
    settings = admin.settings("1", kind="BROKER")

    assert (
        "dense" if settings["offset.mapping"].value == "dense" else "timestamp",
        "STATIC_BROKER_CONFIG",
    ) == (
        settings["offset.mapping"].value,
        settings["offset.mapping"].source,
    )
    assert settings["listeners"].read_only
    assert not settings["log.retention.ms"].read_only
    assert (None, True) == (settings["storage"].value, settings["storage"].sensitive)


def test_single_settings_are_set_and_deleted(admin: Administrator, topic: str) -> None:
    admin.create_topic(topic, settings={"retention.ms": "1000", "segment.ms": "5"})

    admin.change(topic, {"retention.ms": (SET, "2000"), "segment.ms": (DELETE, None), "flush.ms": (SET, "7")})

    settings = admin.settings(topic)
    assert ("2000", "604800000", "7") == tuple(
        settings[name].value for name in ("retention.ms", "segment.ms", "flush.ms")
    )
    assert "DEFAULT_CONFIG" == settings["segment.ms"].source


def test_list_values_are_appended_and_subtracted(admin: Administrator, topic: str) -> None:
    name = "leader.replication.throttled.replicas"
    admin.create_topic(topic, settings={name: "0:1"})

    admin.change(topic, {name: (APPEND, "1:1,2:1")})
    more = admin.settings(topic)[name].value
    admin.change(topic, {name: (SUBTRACT, "0:1,2:1")})

    assert ("0:1,1:1,2:1", "1:1") == (more, admin.settings(topic)[name].value)


def test_all_settings_are_replaced(admin: Administrator, topic: str) -> None:
    admin.create_topic(topic, settings={"retention.ms": "1000"})
    mapping = admin.settings(topic)["offset.mapping"]

    admin.replace(topic, {"segment.ms": "5"})

    settings = admin.settings(topic)
    assert ("DEFAULT_CONFIG", "5") == (settings["retention.ms"].source, settings["segment.ms"].value)
    assert mapping == settings["offset.mapping"]


def test_validate_only_alters_no_setting(admin: Administrator, topic: str) -> None:
    admin.create_topic(topic)

    admin.change(topic, {"retention.ms": (SET, "1")}, validate_only=True)

    assert "DEFAULT_CONFIG" == admin.settings(topic)["retention.ms"].source


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"retention.mss": (SET, "1")}, r"did you mean retention\.ms"),
        ({"retention.ms": (SET, "soon")}, r"accepted: a whole number"),
        ({"retention.ms": (APPEND, "1")}, r"its type is not LIST"),
        ({"storage.layout": (DELETE, None)}, r"storage\.layout was fixed when the topic was created"),
        ({"offset.sequence.bits": (SET, "3")}, r"fixed when the topic was created, and stays 10"),
    ],
)
def test_refused_alterations_are_explained(
    admin: Administrator, topic: str, changes: dict[str, tuple[str, str | None]], words: str
) -> None:
    admin.create_topic(topic)

    with pytest.raises(Exception, match=words):
        admin.change(topic, {"segment.ms": (SET, "5"), **changes})
    assert "DEFAULT_CONFIG" == admin.settings(topic)["segment.ms"].source


def test_broker_settings_that_are_not_dynamic_cannot_be_altered(admin: Administrator) -> None:
    with pytest.raises(Exception, match=r"Cannot update these configs dynamically: node\.id"):
        admin.change("1", {"node.id": (SET, "1")}, kind="BROKER")


def test_dynamic_settings_of_a_broker_are_altered(admin: Administrator) -> None:
    admin.change("1", {"log.retention.bytes": (SET, "123456789")}, kind="BROKER")
    try:
        setting = admin.settings("1", kind="BROKER")["log.retention.bytes"]
        assert ("123456789", "DYNAMIC_BROKER_CONFIG") == (setting.value, setting.source)
    finally:
        admin.change("1", {"log.retention.bytes": (DELETE, None)}, kind="BROKER")


# --- Partitions ---------------------------------------------------------------------------------------------


def test_partitions_can_be_added(admin: Administrator, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    admin.produce(topic, [Record(value=b"before", partition=1)])

    admin.add_partitions(topic, 5)

    assert set(range(5)) == admin.partitions(topic)
    admin.produce(topic, [Record(value=b"after", partition=4)])
    assert [b"after"] == [each.value for each in records_of(admin.consume(topic, 1, partition=4))]
    assert [b"before"] == [each.value for each in records_of(admin.consume(topic, 1, partition=1))]


@pytest.mark.parametrize("count", [2, 1])
def test_partition_count_cannot_be_reduced(admin: Administrator, topic: str, count: int) -> None:
    admin.create_topic(topic, partitions=2)

    with pytest.raises(Exception, match=r"(?i)invalid.?partitions|error 37|already has|not be an increase"):
        admin.add_partitions(topic, count)
    assert {0, 1} == admin.partitions(topic)


def test_validate_only_adds_no_partitions(admin: Administrator, topic: str) -> None:
    admin.create_topic(topic)

    admin.add_partitions(topic, 3, validate_only=True)

    assert {0} == admin.partitions(topic)


# --- Records ------------------------------------------------------------------------------------------------


def test_records_below_an_offset_are_deleted_also_inside_a_batch(admin: Administrator, topic: str) -> None:
    admin.create_topic(topic)
    admin.produce(topic, TEN)
    offsets = [received.offset for received in admin.consume(topic, 10)]

    start = admin.delete_records(topic, offsets[4])

    assert offsets[4] == start
    assert offsets[4] == admin.bounds(topic)[0]
    assert TEN[4:] == records_of(admin.consume(topic, 6))


def test_all_records_are_deleted(admin: Administrator, topic: str) -> None:
    admin.create_topic(topic)
    admin.produce(topic, TEN)
    end = admin.bounds(topic)[1]

    start = admin.delete_records(topic, -1)

    assert (end, (end, end)) == (start, admin.bounds(topic))
    admin.produce(topic, TEN[:1])
    assert TEN[:1] == records_of(admin.consume(topic, 1))


def test_records_beyond_the_log_end_cannot_be_deleted(admin: Administrator, topic: str) -> None:
    admin.create_topic(topic)
    admin.produce(topic, TEN)
    end = admin.bounds(topic)[1]

    with pytest.raises(Exception, match=r"(?i)offset.?out.?of.?range"):
        admin.delete_records(topic, end + 1)
    assert TEN == records_of(admin.consume(topic, 10))


# --- Sizes, pages, reassignments ----------------------------------------------------------------------------


def test_partitions_have_the_size_of_their_records(
    kafka_python: KafkaPythonAdministrator, topic: str
) -> None:
    kafka_python.create_topic(topic, partitions=2)
    kafka_python.produce(topic, [Record(value=b"x" * 1000)] * 100)

    directory, sizes = kafka_python.sizes(topic)

    assert directory.startswith("/")
    assert " " not in directory
    assert 100_000 <= sizes[0] <= 120_000
    assert 0 == sizes[1]


def test_partitions_are_described_in_pages(kafka_python: KafkaPythonAdministrator, topic: str) -> None:
    kafka_python.create_topic(topic, partitions=5)

    assert [[0, 1], [2, 3], [4]] == kafka_python.partition_pages(topic, 2)


def test_no_reassignments_are_listed(kafka_python: KafkaPythonAdministrator) -> None:
    assert {} == kafka_python.reassignments()


# --- Altered settings take effect immediately ---------------------------------------------------------------


def produce(
    broker: KorvetProcess,
    topic: str,
    value: bytes = b"v",
    *,
    timestamp_ms: int | None = None,
    timeout_ms: int = 30_000,
) -> int:
    """Append a record with acks=all. Return its offset."""
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch([(0, now_ms if timestamp_ms is None else timestamp_ms, None, value, ())])
    with Wire(broker.port) as wire:
        wire.send(frame_of(produce_request(topic, batch, timeout_ms=timeout_ms)))
        return produced(wire.receive())


def refusal(broker: KorvetProcess, topic: str, **record: object) -> ErrorCode:
    """Return the error code of the response to a record."""
    try:
        produce(broker, topic, **record)  # type: ignore[arg-type]  # tests pass arguments of `produce`
    except KafkaError as error:
        return error.error_code
    return ErrorCode.NONE


def test_max_message_bytes_applies_immediately(
    admin: Administrator, broker: KorvetProcess, other: KorvetProcess, topic: str
) -> None:
    admin.create_topic(topic)
    for each in (broker, other):
        assert ErrorCode.NONE == refusal(each, topic, value=b"x" * 5000)

    admin.change(topic, {"max.message.bytes": (SET, "1000")})

    assert ErrorCode.MESSAGE_TOO_LARGE == refusal(broker, topic, value=b"x" * 5000)
    eventually(lambda: refusal(other, topic, value=b"x" * 5000), ErrorCode.MESSAGE_TOO_LARGE)
    assert ErrorCode.NONE == refusal(other, topic, value=b"x" * 500)


@pytest.mark.parametrize("direction, sign", [("before", -1), ("after", 1)])
def test_timestamp_limits_apply_immediately(
    broker: KorvetProcess, other: KorvetProcess, topic: str, direction: str, sign: int
) -> None:
    admin = ADMINISTRATORS[0](broker.bootstrap_servers)
    admin.create_topic(topic)
    off_ms = time.time_ns() // 1_000_000 + sign * 3_600_000
    for each in (broker, other):
        assert ErrorCode.NONE == refusal(each, topic, timestamp_ms=off_ms)

    admin.change(topic, {f"message.timestamp.{direction}.max.ms": (SET, "60000")})

    assert ErrorCode.INVALID_TIMESTAMP == refusal(broker, topic, timestamp_ms=off_ms)
    eventually(lambda: refusal(other, topic, timestamp_ms=off_ms), ErrorCode.INVALID_TIMESTAMP)
    assert ErrorCode.NONE == refusal(other, topic)


def test_min_insync_replicas_applies_immediately(
    broker: KorvetProcess, other: KorvetProcess, topic: str
) -> None:
    admin = ADMINISTRATORS[0](broker.bootstrap_servers)
    admin.create_topic(topic)
    assert [ErrorCode.NONE] * 2 == [refusal(each, topic) for each in (broker, other)]

    admin.change(topic, {"min.insync.replicas": (SET, "2")})

    too_few = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    assert refusal(broker, topic, timeout_ms=500) in too_few
    eventually(lambda: refusal(other, topic, timeout_ms=500) in too_few, expected=True)

    admin.change(topic, {"min.insync.replicas": (DELETE, None)})

    assert ErrorCode.NONE == refusal(broker, topic)
    eventually(lambda: refusal(other, topic), ErrorCode.NONE)


def test_timestamp_type_applies_immediately(broker: KorvetProcess, other: KorvetProcess, topic: str) -> None:
    admin = ADMINISTRATORS[0](broker.bootstrap_servers)
    admin.create_topic(topic)
    produce(other, topic, timestamp_ms=1)

    admin.change(topic, {"message.timestamp.type": (SET, "LogAppendTime")})

    def has_create_time(each: KorvetProcess) -> bool:
        offset = produce(each, topic, timestamp_ms=1)
        (received,) = admin.consume(topic, 1, start=offset)
        return received.timestamp_ms == 1

    assert not has_create_time(broker)
    eventually(lambda: has_create_time(other), expected=False)


def codec(broker: KorvetProcess, topic: str, offset: int) -> Codec:
    """Return the compression of the batch at an offset when it is fetched."""
    with Wire(broker.port) as wire:
        wire.send(frame_of(fetch_request(topic, offset, max_wait_ms=0)))
        return parse_batches(fetched(wire.receive()))[0].compression


def test_compression_type_applies_immediately(
    broker: KorvetProcess, other: KorvetProcess, topic: str
) -> None:
    admin = ADMINISTRATORS[0](broker.bootstrap_servers)
    admin.create_topic(topic)
    is_rebuilt = is_shared(broker) and admin.settings(topic)["storage.layout"].value == "record"
    offset = produce(broker, topic, b"x" * 1000)
    assert [Codec.NONE] * 2 == [codec(each, topic, offset) for each in (broker, other)]

    admin.change(topic, {"compression.type": (SET, "zstd")})

    expected = Codec.ZSTD if is_rebuilt else Codec.NONE
    assert expected == codec(broker, topic, offset)
    eventually(lambda: codec(other, topic, offset), expected)
    assert [b"x" * 1000] == [each.value for each in records_of(admin.consume(topic, 1))]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same", "other"])
def test_retention_bytes_applies_to_the_next_record(
    broker: KorvetProcess, other: KorvetProcess, topic: str, elsewhere: bool
) -> None:
    admin = ADMINISTRATORS[0](broker.bootstrap_servers)
    admin.create_topic(topic)
    writer = other if elsewhere else broker
    first, *_ = [produce(writer, topic, b"x" * 100_000) for _ in range(20)]
    assert first >= admin.bounds(topic)[0]

    admin.change(topic, {"retention.bytes": (SET, "300000")})

    eventually(lambda: produce(writer, topic) > 0 and admin.bounds(topic)[0] > first, expected=True)
    kept = KafkaPythonAdministrator(broker.bootstrap_servers).sizes(topic)[1][0]
    assert 300_000 <= kept <= 1_000_000


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same", "other"])
def test_retention_ms_applies_to_the_next_record(
    broker: KorvetProcess, eager_broker: KorvetProcess, topic: str, elsewhere: bool
) -> None:
    admin = ADMINISTRATORS[0](eager_broker.bootstrap_servers)
    admin.create_topic(topic, settings={"retention.ms": "-1"})
    long_ago = time.time_ns() // 1_000_000 - 3_600_000
    first, *_ = [produce(eager_broker, topic, b"x" * 100_000, timestamp_ms=long_ago) for _ in range(10)]
    assert first >= admin.bounds(topic)[0]

    altering = broker if elsewhere and is_shared(broker) else eager_broker
    ADMINISTRATORS[0](altering.bootstrap_servers).change(topic, {"retention.ms": (SET, "60000")})

    eventually(lambda: produce(eager_broker, topic) > 0 and admin.bounds(topic)[0] > first, expected=True)
