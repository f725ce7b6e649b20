from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructField, StructType

from korvet.client.partitioner import partition_of_key
from korvet.faults.kinds import Delay, Drop, Error, Fault, Truncate
from korvet.pipeline.offsets import WrongOption
from korvet.pipeline.options import write_options
from korvet.pipeline.topic_writing import RowRefused, check_columns, check_topic, write_rows
from korvet.protocol.compression import Codec
from korvet.protocol.errors import KafkaError, MessageTooLarge, NetworkException, UnknownTopicOrPartition
from korvet.testing.threads import RunningBroker, running_broker
from tests.pipeline.support import Cluster
from tests.servers import VALKEY, start_server

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def write(cluster: Cluster, *batches: pa.RecordBatch, **options: object) -> None:
    write_rows(write_options(cluster.options(**options)), iter(batches))


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec])
def test_rows_written_with_every_codec_are_read_back(cluster: Cluster, topic: str, codec: str) -> None:
    cluster.create(topic, partitions=3)
    keys = [None if n % 5 == 0 else b"key-%d" % n for n in range(1000)]
    values = [None if n % 7 == 0 else b"value-%d" % n * 100 for n in range(1000)]
    headers = [[{"key": "h", "value": None}] * (n % 3) or None for n in range(1000)]
    rows = pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(headers, pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))),
            "ignored": pa.array(range(1000)),
        }
    )
    write(cluster, rows, rows, topic=topic, kafka__compression__type=codec)
    back = cluster.read(subscribe=topic, includeHeaders="true")

    expected = Counter(
        (key, value, str(each)) for key, value, each in zip(keys, values, headers, strict=True)
    )
    found = Counter((row["key"], row["value"], str(row["headers"])) for row in back)
    assert {row: 2 * count for row, count in expected.items()} == found
    assert all(row["partition"] == partition_of_key(row["key"], 3) for row in back if row["key"] is not None)


def test_keyless_rows_are_distributed_and_keyed_rows_keep_their_order(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, partitions=4)
    values = [b"%d" % n for n in range(4000)]
    keyless = pa.record_batch({"value": pa.array([bytes(1000)] * 4000)})
    keyed = pa.record_batch({"key": pa.array([b"one"] * 4000), "value": pa.array(values)})
    for rows in (keyless, keyed):
        write(cluster, rows, topic=topic, kafka__max__request__size=100_000)
    back = cluster.read(subscribe=topic)

    assert values == [row["value"] for row in back if row["key"] is not None]
    assert {0, 1, 2, 3} == {row["partition"] for row in back if row["key"] is None}
    assert 8000 == len(back)


def test_text_is_written_as_utf_8(memory: Cluster, topic: str) -> None:
    memory.create(topic)
    write(memory, pa.record_batch({"key": ["ä"], "value": ["€"]}), topic=topic)

    assert [("ä".encode(), "€".encode())] == [
        (row["key"], row["value"]) for row in memory.read(subscribe=topic)
    ]


def test_topic_option_overrides_the_topic_column(memory: Cluster, topic: str) -> None:
    memory.create(topic)
    write(memory, pa.record_batch({"topic": pa.array([None], pa.string()), "value": [b"x"]}), topic=topic)

    assert [b"x"] == [row["value"] for row in memory.read(subscribe=topic)]


def test_rows_that_cannot_be_written_are_refused_with_the_reason(memory: Cluster, topic: str) -> None:
    memory.create(topic, partitions=2)
    value = pa.array([b"x"])
    with pytest.raises(RowRefused, match="topic is null; a name is accepted, or an option topic"):
        write(memory, pa.record_batch({"topic": pa.array([None], pa.string()), "value": value}))
    for partition in (2, -1):
        rows = pa.record_batch({"partition": pa.array([partition], pa.int32()), "value": value})
        with pytest.raises(RowRefused, match=f"There is no {topic}-{partition}; .* partitions are 0 to 1"):
            write(memory, rows, topic=topic)
    with pytest.raises(UnknownTopicOrPartition, match="There is no topic .*, and the broker creates none"):
        write(memory, pa.record_batch({"value": value}), topic=f"{topic}-missing")
    large = pa.record_batch({"value": [bytes(2_000_000)], "partition": pa.array([1], pa.int32())})
    with pytest.raises(MessageTooLarge, match=rf"{topic}-1: .*\(1 rows\)"):
        write(memory, large, topic=topic)


def test_unreachable_broker_is_reported_by_check_topic() -> None:
    with pytest.raises(NetworkException, match="127.0.0.1:1: Connection refused"):
        check_topic(write_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "a"}))


TYPES = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


def schema_of(ddl: str) -> StructType:
    """Parse a schema from DDL. Spark's own parser needs a session."""
    columns = (column.split(" ") for column in ddl.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


@pytest.mark.parametrize(
    "columns, said",
    [
        ("key string", "there is no column value; accepted are value, and key"),
        ("value bigint", "column value is bigint; accepted is string or binary"),
        ("value string, key int", "column key is int; accepted is string or binary"),
        ("value string, partition bigint", "column partition is bigint; accepted is int"),
        ("value string, headers map<string,string>", "accepted is array<struct<key:string,value:binary>>"),
    ],
)
def test_columns_are_checked_by_their_types(columns: str, said: str) -> None:
    schema = schema_of(columns)
    with pytest.raises(WrongOption) as raised:
        check_columns(schema, write_options({**SERVERS, "topic": "a"}))

    assert said in str(raised.value)


def test_topic_is_named_by_an_option_or_a_column() -> None:
    with pytest.raises(
        WrongOption, match="no topic is named; accepted is an option topic, or a column topic"
    ):
        check_columns(schema_of("value string"), write_options(SERVERS))
    check_columns(schema_of("value string, topic string"), write_options(SERVERS))


@pytest.fixture(params=["memory:", pytest.param("redis", marks=pytest.mark.servers)])
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """A broker whose faults the test injects."""
    if request.param == "memory:":
        with running_broker() as running:
            yield running
        return
    server = start_server(VALKEY)
    try:
        with running_broker(server.url, {"offset.mapping": "dense"}) as running:
            yield running
    finally:
        server.remove()


def write_numbers(broker: RunningBroker, topic: str, count: int, **options: object) -> None:
    """Write rows with the values 0 to `count`, in several batches of both partitions."""
    rows = pa.record_batch(
        {
            "value": pa.array([b"%d" % number for number in range(count)]),
            "partition": pa.array([number % 2 for number in range(count)], pa.int32()),
        }
    )
    given = Cluster(broker.bootstrap_servers, is_dense=True).options(
        topic=topic, kafka__max__request__size=2000, **options
    )
    write_rows(write_options(given), iter([rows]))


def values_of(broker: RunningBroker, topic: str) -> list[list[int]]:
    return [
        [int(record.value) for record in broker.records(topic, partition) if record.value is not None]
        for partition in (0, 1)
    ]


def in_order(count: int) -> list[list[int]]:
    return [list(range(0, count, 2)), list(range(1, count, 2))]


@pytest.mark.parametrize("lost", [Drop("after", api="Produce", count=7), Truncate(api="Produce", count=7)])
def test_lost_responses_double_and_reorder_no_rows(broker: RunningBroker, lost: Fault) -> None:
    topic = broker.create_topic(partitions=2)
    broker.faults.add(lost)
    write_numbers(broker, topic, 2000)

    assert in_order(2000) == values_of(broker, topic)


def test_tasks_of_a_process_share_producer_ids(broker: RunningBroker) -> None:
    topic = broker.create_topic(partitions=2)
    seen = []
    for _ in range(3):
        with broker.faults.add(Delay(ms=0, api="InitProducerId")) as asked:
            write_numbers(broker, topic, 10)
        seen.append(asked.hits)

    assert [0, 0] == seen[1:]


def test_producer_id_of_a_failed_task_is_not_used_again(broker: RunningBroker) -> None:
    topic = broker.create_topic(partitions=2)
    write_numbers(broker, topic, 10)
    with broker.faults.add(Error("TOPIC_AUTHORIZATION_FAILED", api="Produce")), pytest.raises(KafkaError):
        write_numbers(broker, topic, 10)
    with broker.faults.add(Delay(ms=0, api="InitProducerId")) as asked:
        write_numbers(broker, topic, 10)

    assert 1 == asked.hits
    assert [each + each for each in in_order(10)] == values_of(broker, topic)


def test_writing_without_idempotence_requests_no_producer_id(broker: RunningBroker) -> None:
    topic = broker.create_topic(partitions=2)
    with broker.faults.add(Delay(ms=0, api="InitProducerId")) as asked:
        write_numbers(broker, topic, 10, kafka__enable__idempotence="false")

    assert 0 == asked.hits
    assert in_order(10) == values_of(broker, topic)
