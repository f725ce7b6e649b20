"""Real clients with records of every size and codec, at brokers whose options are all on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from kafka import KafkaConsumer

from tests.certificates import Authority
from tests.clients.interface import CODECS
from tests.clients.secured import PASSWORD
from tests.everything.brokers import CASES, BrokerWithEverything, Case, everything
from tests.everything.consumers import keys_by_aiokafka, keys_by_kcat
from tests.lake.replay import rows_of
from tests.pipeline.archiving import archived
from tests.reading import read_to_end

pytestmark = [pytest.mark.clients, pytest.mark.servers, pytest.mark.slow]

KEYS = 20
LIMIT_S = 90.0  # of a wait, on a machine that has much else to do
#: Number of records by size: with each codec 2.6 MB, in batches of one record and of thousands.
LOAD = {1: 2_000, 200: 2_000, 1_000: 500, 20_000: 20, 1_000_000: 1}
JOBS = Counter({b"%04d" % number + bytes(1_000): 1 for number in range(2_000)})
# Transactions that are committed, the records of each, and their values.
TRANSACTIONS = 4
MOVED = 1_000
COMMITTED: Counter[bytes | None] = Counter({b"%d" % value: TRANSACTIONS * MOVED // 10 for value in range(10)})
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
# The identity of a record: its codec and size.
Kind = tuple[str, int]


@pytest.fixture(params=CASES, ids=lambda case: case.id)
def broker(request: pytest.FixtureRequest, authority: Authority) -> Iterator[BrokerWithEverything]:
    case: Case = request.param
    with everything(case, authority) as running:
        yield running


def create(broker: BrokerWithEverything, topic: str, partitions: int, **settings: str) -> None:
    admin = AdminClient(broker.librdkafka)
    config = {name.replace("_", "."): value for name, value in settings.items()}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([new], operation_timeout=LIMIT_S)[topic].result(LIMIT_S)


def produce_load(broker: BrokerWithEverything, topic: str) -> Counter[Kind]:
    """Produce records of every size with every codec; return their numbers."""
    failures = []
    for codec in CODECS:
        settings = {"compression.type": codec, "linger.ms": 20, "message.max.bytes": 1_048_576}
        producer = Producer({**broker.librdkafka, **settings})
        for size, count in LOAD.items():
            for number in range(count):
                producer.produce(
                    topic,
                    b"%x" % number * (size // 4) if size > 20_000 else b"v" * size,
                    f"{codec}/{size}",
                    partition=number % 3,
                    headers=[("traceparent", TRACE)] if number == 7 else None,
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
                if not number % 500:
                    producer.poll(0)
        assert 0 == producer.flush(LIMIT_S)
    assert [] == failures
    return Counter({(codec, size): count for codec in CODECS for size, count in LOAD.items()})


def kind(key: bytes | None) -> Kind:
    codec, _, size = (key or b"").decode().partition("/")
    return codec, int(size)


def consume_in_a_group(broker: BrokerWithEverything, topic: str, count: int) -> Counter[Kind]:
    """Consume with librdkafka, until there are as many records."""
    consumer = Consumer({**broker.librdkafka, "group.id": "everything", "auto.offset.reset": "earliest"})
    found: Counter[Kind] = Counter()
    deadline = time.monotonic() + LIMIT_S
    try:
        consumer.subscribe([topic])
        while found.total() < count and time.monotonic() < deadline:
            for message in consumer.consume(1_000, 1.0):
                assert message.error() is None
                found[kind(message.key())] += 1
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def consume_with_kafka_python(
    broker: BrokerWithEverything, authority: Authority, topic: str, count: int
) -> Counter[Kind]:
    """Consume with kafka-python, until there are as many records."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=f"127.0.0.1:{broker.clients_port}",
        security_protocol="SASL_SSL",
        ssl_context=authority.context(None),
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="alice",
        sasl_plain_password=PASSWORD,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=int(1000 * LIMIT_S),
    )
    found: Counter[Kind] = Counter()
    try:
        for record in consumer:
            found[kind(record.key)] += 1
            if found.total() == count:
                break
    finally:
        consumer.close()
    return found


def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_everything_works_together(broker: BrokerWithEverything, authority: Authority) -> None:
    is_embedded = broker.storage.startswith("embedded:")
    create(broker, "orders", 3, **({"remote_storage_enable": "true"} if is_embedded else {}))
    produced = produce_load(broker, "orders")

    assert produced == consume_in_a_group(broker, "orders", produced.total())
    assert produced == consume_with_kafka_python(broker, authority, "orders", produced.total())
    keys = Counter({f"{codec}/{size}".encode(): count for (codec, size), count in produced.items()})
    assert keys == keys_by_aiokafka(broker, authority, "orders", produced.total())
    assert keys == keys_by_kcat(broker, "orders", 3)

    if is_embedded:
        archived(broker.bootstrap_servers, "orders", broker.lake)
        assert keys == Counter(row.key for row in rows_of(broker.lake / "orders"))

    transact(broker, **({"remote_storage_enable": "true"} if is_embedded else {}))
    until(lambda: broker.metric("korvet_transactions_ended_total", result="commit") == TRANSACTIONS)
    assert 1 == broker.metric("korvet_transactions_ended_total", result="abort")
    assert COMMITTED == committed_values(broker, "moved")
    if is_embedded:
        archived(broker.bootstrap_servers, "moved", broker.lake)
        assert COMMITTED == Counter(row.value for row in rows_of(broker.lake / "moved"))

    assert finished_by_two_workers(broker) == JOBS
    until(lambda: b'"lag": 0' in broker.page("/group/lag.json?id=workers&type=share").encode())

    produce_keys(broker)
    until(lambda: broker.metric("korvet_compaction_removed_bytes_total") > 0)
    assert {f"k/{key}": b"v4" for key in range(KEYS)} == latest_values(broker)

    assert "everything" in broker.page("/groups")
    assert "zstd/1000000" in broker.page("/topics/orders/records")
    assert produced.total() == broker.metric("korvet_topic_received_records_total", topic="orders")
    assert broker.metric("korvet_topic_sent_records_total", topic="orders") >= 4 * produced.total()
    assert 0 == broker.metric("korvet_group_lag_records", group="everything")
    assert 0 == broker.metric("korvet_connections_aborted_total", reason="internal")
    assert [] == [line for line in broker.log if "Traceback" in line or " ERROR " in line]

    assert 0 == broker.stop()
    assert {"Produce", "Fetch", "JoinGroup", "OffsetCommit", "EndTxn", "TxnOffsetCommit", "ShareFetch"} <= {
        *broker.receiver.names
    }


def finished_by_two_workers(broker: BrokerWithEverything) -> Counter[bytes | None]:
    """Produce the jobs, and return those that two members of a share group have finished."""
    create(broker, "jobs", 3)
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ConfigResource.Type.GROUP, "workers", incremental_configs=[entry])
    admin = AdminClient(broker.librdkafka)
    admin.incremental_alter_configs([group])[group].result(LIMIT_S)
    producer = Producer(broker.librdkafka)
    for job in JOBS:
        producer.produce("jobs", job)
    assert 0 == producer.flush(LIMIT_S)

    settings = {"group.id": "workers", "share.acknowledgement.mode": "explicit"}
    workers = [ShareConsumer({**broker.librdkafka, **settings}) for _ in range(2)]
    finished: Counter[bytes | None] = Counter()
    deadline = time.monotonic() + LIMIT_S
    for worker in workers:
        worker.subscribe(["jobs"])
    while finished.total() < JOBS.total() and time.monotonic() < deadline:
        for worker in workers:
            for message in worker.poll(0.2):
                assert message.error() is None
                finished[message.value()] += 1
                worker.acknowledge(message)
            worker.commit_sync(LIMIT_S)
    for worker in workers:
        worker.close()
    return finished


def transact(broker: BrokerWithEverything, **settings: str) -> None:
    """Commit records and offsets in transactions, and abort one of them before the last."""
    create(broker, "moved", 2, **settings)
    consumer = Consumer({**broker.librdkafka, "group.id": "movers", "enable.auto.commit": False})
    producer = Producer({**broker.librdkafka, "transactional.id": "mover", "linger.ms": 20})
    producer.init_transactions(LIMIT_S)
    for number in range(TRANSACTIONS + 1):
        is_aborted = number == TRANSACTIONS - 1
        producer.begin_transaction()
        for each in range(MOVED):
            producer.produce("moved", b"aborted" if is_aborted else b"%d" % (each % 10), partition=each % 2)
        offsets = [TopicPartition("orders", 0, number)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), LIMIT_S)
        if is_aborted:
            producer.abort_transaction(LIMIT_S)
        else:
            producer.commit_transaction(LIMIT_S)
    (committed,) = consumer.committed([TopicPartition("orders", 0)], LIMIT_S)
    assert TRANSACTIONS == committed.offset
    consumer.close()


def committed_values(broker: BrokerWithEverything, topic: str) -> Counter[bytes | None]:
    """Return the committed values of a topic, up to its end."""
    partitions = [(topic, number) for number in range(2)]
    messages = read_to_end(broker.librdkafka, partitions, "read_committed")
    return Counter(message.value() for message in messages)


def produce_keys(broker: BrokerWithEverything) -> None:
    """Produce five values of each key to a compacted topic."""
    create(broker, "keyed", 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    producer = Producer(broker.librdkafka)
    for number in range(5):
        for key in range(KEYS):
            producer.produce("keyed", b"v%d" % number + bytes(2_000), f"k/{key}")
        assert 0 == producer.flush(LIMIT_S)


def latest_values(broker: BrokerWithEverything) -> dict[str, bytes]:
    """Return the last value of each key, shortened, as a consumer that starts at the beginning finds it."""
    consumer = Consumer({**broker.librdkafka, "group.id": "keyed", "enable.partition.eof": True})
    found = {}
    try:
        consumer.assign([TopicPartition("keyed", 0, OFFSET_BEGINNING)])
        while (message := consumer.poll(LIMIT_S)) is not None and message.error() is None:
            found[message.key().decode()] = message.value()[:2]
    finally:
        consumer.close()
    return found
