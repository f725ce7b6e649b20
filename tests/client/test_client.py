"""The client against fake clusters: several brokers, old versions, and failures."""

from __future__ import annotations

import itertools

import pytest
import trio

from korvet.client import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Address,
    Client,
    ConsumedRecord,
    ListedOffset,
    OffsetAndMetadata,
    Record,
    TopicPartition,
    open_client,
    parse_address,
)
from korvet.client.partitioner import partition_of_key
from korvet.protocol.compression import Codec
from korvet.protocol.errors import (
    BrokerNotAvailable,
    CorruptMessage,
    ErrorCode,
    GroupAuthorizationFailed,
    InvalidTopicException,
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse
from korvet.protocol.record_batch import build_batch, parse_batches
from tests.client.fake_cluster import KAFKA_2_3, Close, FakeCluster, Late, fake_cluster, web_server

NOW = 1_700_000_000_000
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
T2 = TopicPartition("t", 2)
PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, API_VERSIONS, CREATE_TOPICS = 8, 9, 10, 18, 19


@pytest.fixture(autouse=True)
def no_waiting_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.client.cluster.FIRST_BACKOFF_S", 0.001)


async def read(client: Client, *tps: TopicPartition) -> list[ConsumedRecord]:
    """Return all records of some partitions."""
    ends = {tp: end.offset for tp, end in (await client.list_offsets(dict.fromkeys(tps, LATEST))).items()}
    return [record async for record in client.consume(dict.fromkeys(tps, 0), until=ends)]


def requests_of(cluster: FakeCluster, key: int) -> list[tuple[int, int]]:
    return [(node, version) for node, seen, version in cluster.requests if seen == key]


# --- Connecting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text,expected",
    [
        ("localhost:9093", ("localhost", 9093)),
        (" 10.0.0.1:1 ", ("10.0.0.1", 1)),
        ("broker", ("broker", 9092)),
        ("[::1]:9094", ("::1", 9094)),
        ("[::1]", ("::1", 9092)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert Address(*expected) == parse_address(text)


@pytest.mark.parametrize(
    "text", ["", ":9092", "host:", "host:port", "host:0", "host:65536", "::1", "::1:9092"]
)
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no broker address"):
        parse_address(text)


def test_an_ipv6_address_is_printed_in_brackets() -> None:
    assert "[::1]:9092" == str(Address("::1", 9092))


async def test_connecting_tells_the_cluster() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        assert ("fake", 2) == (client.cluster_id, client.controller_id)
        assert cluster.ports == {node: address.port for node, address in client.brokers.items()}


async def test_the_first_broker_that_answers_is_enough() -> None:
    async with fake_cluster(2) as (cluster, _):
        cluster.stop(1)
        async with open_client(cluster.bootstrap) as client:
            assert "fake" == client.cluster_id


async def test_where_nobody_listens_the_error_names_the_address_and_the_reason() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()

    with pytest.raises(NetworkException, match=f"127.0.0.1:{port}: Connection refused"):
        async with open_client(f"127.0.0.1:{port}"):
            pass


async def test_a_server_of_another_protocol_is_told_apart() -> None:
    async with web_server() as address:
        with pytest.raises(BrokerNotAvailable, match="does not speak Kafka's protocol"):
            async with open_client(address):
                pass


async def test_a_broker_that_closes_at_once_is_a_network_error() -> None:
    async with fake_cluster() as (cluster, _):
        cluster.faults[API_VERSIONS] = [Close()]
        with pytest.raises(NetworkException, match="the broker closed the connection"):
            async with open_client(cluster.bootstrap):
                pass


async def test_a_broker_that_does_not_answer_is_not_waited_for_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with fake_cluster() as (cluster, _):
        cluster.faults[METADATA] = [Late()]
        with pytest.raises(RequestTimedOut, match="did not answer a MetadataRequest within 3 s"):
            async with open_client(cluster.bootstrap, request_timeout_s=3):
                pass


async def test_connections_end_with_the_client() -> None:
    async with fake_cluster() as (cluster, _):
        async with open_client(cluster.bootstrap) as client:
            await client.topics()
            assert 1 == cluster.connections
        while cluster.connections:
            await trio.lowlevel.checkpoint()


# --- Versions ---------------------------------------------------------------------------------------------


async def test_the_newest_versions_of_both_sides_are_spoken() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        await client.produce("t", [Record(b"v")])
        await read(client, T0)

        assert {(API_VERSIONS, 4), (METADATA, 12), (PRODUCE, 11), (FETCH, 17), (LIST_OFFSETS, 11)} == {
            (key, version) for _, key, version in cluster.requests
        }


async def test_old_brokers_are_spoken_to_in_their_versions() -> None:
    async with fake_cluster(max_versions=KAFKA_2_3) as (cluster, _):
        async with open_client(cluster.bootstrap) as client:
            await client.create_topic("t", partitions=2, replication_factor=1)
            await client.produce("t", [Record(b"v", partition=1)])
            await client.commit("g", {T1: OffsetAndMetadata(1)})

            assert [b"v"] == [record.value for record in await read(client, T0, T1)]
            assert {T1: OffsetAndMetadata(1)} == await client.committed("g")
            await client.delete_topic("t")
        # The broker answers version 4 with its supported versions, in version 0 (KIP-511).
        assert [(1, 4), (1, 2)] == requests_of(cluster, API_VERSIONS)
        assert [(1, 11)] == requests_of(cluster, FETCH)


async def test_what_a_broker_does_not_speak_is_said() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        with pytest.raises(UnsupportedVersion, match="speaks DescribeCluster not at all; needed is 0 to 2"):
            await client.request(
                DescribeClusterRequest(include_cluster_authorized_operations=False), DescribeClusterResponse
            )


async def test_a_special_timestamp_that_is_too_new_for_the_broker_is_not_taken_for_a_time() -> None:
    async with fake_cluster(max_versions=KAFKA_2_3) as (cluster, _):
        cluster.add("t", 1)
        async with open_client(cluster.bootstrap) as client:
            with pytest.raises(
                UnsupportedVersion, match="speaks ListOffsets versions 1 to 5; needed is 7 to 11"
            ):
                await client.list_offsets({T0: MAX_TIMESTAMP})


async def test_any_request_may_be_sent_to_a_broker_of_ones_choice() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        await client.request(MetadataRequest(topics=[]), MetadataResponse, node_id=2)

        assert (2, METADATA, 12) == cluster.requests[-1]


# --- Topics -----------------------------------------------------------------------------------------------


async def test_topics_are_created_described_and_deleted_at_the_controller() -> None:
    async with fake_cluster(3) as (cluster, _), open_client(cluster.bootstrap) as client:
        await client.create_topic("t", partitions=3, settings={"cleanup.policy": "compact"})
        topic = await client.topic("t")

        assert {"cleanup.policy": "compact"} == cluster.topics["t"].settings
        assert [(0, 1, (1,)), (1, 2, (2,)), (2, 3, (3,))] == [
            (p.partition, p.leader_id, p.isr_ids) for p in topic.partitions
        ]
        assert {"t": topic} == await client.topics()
        await client.delete_topic("t")
        assert {} == await client.topics()
        assert [(3, 7)] == requests_of(cluster, CREATE_TOPICS)


async def test_a_topic_may_be_tried_without_being_created() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        await client.create_topic("t", validate_only=True)

        assert {} == cluster.topics


async def test_a_topic_that_exists_is_not_created_and_the_brokers_words_are_told() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        with pytest.raises(TopicAlreadyExists, match="t: no, it was said"):
            await client.create_topic("t")


async def test_a_controller_that_moved_is_found_again() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.faults[CREATE_TOPICS] = [ErrorCode.NOT_CONTROLLER]
        await client.create_topic("t")

        assert 2 == len(requests_of(cluster, CREATE_TOPICS))


async def test_a_topic_that_is_not_there_is_said_at_once() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        with pytest.raises(UnknownTopicOrPartition, match="^t: "):
            await client.topic("t")
        assert 2 == len(requests_of(cluster, METADATA))


async def test_a_topic_without_a_leader_yet_is_waited_for() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        cluster.faults[METADATA] = [ErrorCode.LEADER_NOT_AVAILABLE] * 2

        assert "t" == (await client.topic("t")).name


async def test_a_topic_that_cannot_be_is_not_asked_for_twice() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.faults[METADATA] = [ErrorCode.INVALID_TOPIC_EXCEPTION]
        with pytest.raises(InvalidTopicException, match="^t: "):
            await client.topic("t")


# --- Producing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
async def test_what_is_produced_is_consumed(codec: Codec) -> None:
    records = [
        Record(b"value", key=b"key", headers=(("a", b"1"), ("a", None)), timestamp=NOW, partition=0),
        Record(None, key=None, timestamp=NOW - 5, partition=0),
        Record(b"", key=b"", timestamp=NOW, partition=0),
    ]
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        produced = await client.produce("t", records, codec=codec)

        assert [(0, 0), (0, 1), (0, 2)] == produced
        assert [
            ConsumedRecord("t", 0, offset, r.timestamp or 0, r.key, r.value, r.headers)
            for offset, r in enumerate(records)
        ] == await read(client, T0)
        assert [codec] == [parse_batches(data)[0].compression for data in cluster.topics["t"].logs[0]]


async def test_keys_decide_about_partitions_and_results_come_in_the_order_of_records() -> None:
    records = [Record(b"%d" % n, key=b"key %d" % n) for n in range(50)]
    async with fake_cluster(3) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 2, 3)
        produced = await client.produce("t", records)
        stored = {(r.partition, r.offset): r.value for r in await read(client, T0, T1, T2)}

        assert [partition_of_key(b"key %d" % n, 3) for n in range(50)] == [p.partition for p in produced]
        assert [r.value for r in records] == [stored[where] for where in produced]


async def test_keyless_records_of_one_call_go_together_and_calls_take_turns() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 1, 1)
        calls = [await client.produce("t", [Record(b"v")] * 10) for _ in range(3)]

        assert [1, 1, 1] == [len({produced.partition for produced in call}) for call in calls]
        assert {0, 1, 2} == {call[0].partition for call in calls}


async def test_many_keyless_records_fill_one_batch_after_the_other() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 1)
        produced = await client.produce("t", [Record(bytes(1_000))] * 3_000)
        runs = [len(list(run)) for _, run in itertools.groupby(p.partition for p in produced)]

        assert [968, 968, 968, 96] == runs
        assert 4 == sum(len(log) for log in cluster.topics["t"].logs)


async def test_partitions_without_a_leader_get_no_keyless_records() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", -1, 1, -1)
        calls = [await client.produce("t", [Record(b"v")]) for _ in range(3)]

        assert {1} == {produced.partition for call in calls for produced in call}


async def test_records_without_a_time_are_of_now() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        await client.produce("t", [Record(b"v")])
        (record,) = await read(client, T0)

        assert record.timestamp > NOW


async def test_without_acknowledgement_no_offset_is_known() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        produced = await client.produce("t", [Record(b"v")] * 2, acks=0)
        # On the same connection, so the broker has read the records before it answers.
        await client.topics()

        assert [(0, -1), (0, -1)] == produced
        assert 2 == cluster.end("t", 0)


async def test_nothing_to_produce_asks_nobody() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)

        assert [] == await client.produce("t", [])
        assert [] == requests_of(cluster, PRODUCE)


async def test_a_batch_that_is_too_large_for_the_topic_is_split() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        cluster.max_message_bytes = 500
        produced = await client.produce("t", [Record(b"%03d" % n * 50) for n in range(10)])

        assert list(range(10)) == [p.offset for p in produced]
        assert [b"%03d" % n * 50 for n in range(10)] == [record.value for record in await read(client, T0)]


async def test_a_record_that_is_too_large_is_an_error_that_names_its_partition() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        cluster.max_message_bytes = 500
        with pytest.raises(KafkaError, match="^t-0: ") as caught:
            await client.produce("t", [Record(b"v"), Record(bytes(501))])

        assert ErrorCode.MESSAGE_TOO_LARGE == caught.value.error_code
        assert 1 == cluster.end("t", 0)


async def test_a_leader_that_moved_is_found_and_order_is_kept() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        topic = cluster.add("t", 1)
        await client.produce("t", [Record(b"0")])
        topic.leaders[0] = 2
        produced = await client.produce("t", [Record(bytes(900_000)), Record(b"2"), Record(bytes(900_000))])

        assert [1, 2, 3] == [p.offset for p in produced]
        assert [1, 1, 2, 2] == [node for node, _ in requests_of(cluster, PRODUCE)]


@pytest.mark.parametrize(
    "fault",
    [Close(), ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR],
)
async def test_what_may_pass_is_tried_again(fault: Close | ErrorCode) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        cluster.faults[PRODUCE] = [fault, fault]

        assert [(0, 0)] == await client.produce("t", [Record(b"v")])


async def test_what_does_not_pass_in_time_is_raised(autojump_clock: trio.testing.MockClock) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap, retry_timeout_s=5) as client:
        cluster.add("t", 1)
        cluster.faults[PRODUCE] = [ErrorCode.NOT_ENOUGH_REPLICAS] * 100
        with pytest.raises(NotEnoughReplicas):
            await client.produce("t", [Record(b"v")])

        assert 4 < trio.current_time() <= 5


async def test_a_topic_that_never_comes_is_given_up_soon(autojump_clock: trio.testing.MockClock) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        started = trio.current_time()
        with pytest.raises(UnknownTopicOrPartition):
            await client.produce("t", [Record(b"v")])

        assert trio.current_time() - started <= 3


async def test_a_partition_that_is_not_there_is_named(autojump_clock: trio.testing.MockClock) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 1)
        with pytest.raises(UnknownTopicOrPartition, match="t has 2 partitions; there is no t-7"):
            await client.produce("t", [Record(b"v", partition=7)])


async def test_a_topic_without_any_leader_is_said(autojump_clock: trio.testing.MockClock) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap, retry_timeout_s=1) as client:
        cluster.add("t", -1)
        with pytest.raises(LeaderNotAvailable, match="No partition of t has a leader"):
            await client.produce("t", [Record(b"v")])
        cluster.topics["t"].leaders.append(1)
        cluster.topics["t"].logs.append([])
        with pytest.raises(LeaderNotAvailable, match="t-0 has no leader"):
            await client.produce("t", [Record(b"v", partition=0)])


async def test_an_error_that_stays_is_raised_though_others_might_pass() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 2)
        cluster.faults[PRODUCE] = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.INVALID_RECORD]
        with pytest.raises(KafkaError, match="^t-[01]: ") as caught:
            await client.produce("t", [Record(b"v", partition=0), Record(b"v", partition=1)])

        assert ErrorCode.INVALID_RECORD == caught.value.error_code


async def test_a_broker_that_restarts_is_connected_to_again() -> None:
    async with fake_cluster() as (cluster, start), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        await client.produce("t", [Record(b"0")])
        cluster.stop(1)
        while cluster.connections:
            await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, 1)
            assert [(0, 1)] == await client.produce("t", [Record(b"1")])


# --- Consuming --------------------------------------------------------------------------------------------


async def test_consuming_begins_in_the_middle_of_a_batch_and_ends_before_the_end() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        await client.produce("t", [Record(b"%d" % n) for n in range(10)])
        consumer = client.consume({T0: 3}, until={T0: 6})

        assert [(3, b"3"), (4, b"4"), (5, b"5")] == [(r.offset, r.value) async for r in consumer]


async def test_nothing_to_consume_asks_nobody() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)

        assert [] == [record async for record in client.consume({T0: 0}, until={T0: 0})]
        assert [] == [record async for record in client.consume({}, until={})]
        assert [] == requests_of(cluster, FETCH)


async def test_a_waiting_consumer_gets_a_record_as_soon_as_it_is_there() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        consumer = client.consume({T0: 0}, max_wait_ms=60_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.produce, "t", [Record(b"v")])
            with trio.fail_after(5):
                record = await anext(consumer)

        assert (b"v", 1) == (record.value, consumer.positions[T0])


async def test_a_waiting_consumer_holds_up_nobody_and_its_connection_ends_with_it() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        consumer = client.consume({T0: 0}, max_wait_ms=60_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.poll)
            while not requests_of(cluster, FETCH):
                await trio.lowlevel.checkpoint()
            await client.topics()
            assert 2 == cluster.connections
            nursery.cancel_scope.cancel()
        # A broker detects the closed connection only when it sends.
        await client.produce("t", [Record(b"v")])
        while cluster.connections > 1:
            await trio.lowlevel.checkpoint()
        assert {T0: 0} == consumer.positions


async def test_a_poll_that_brings_nothing_in_time_returns_nothing() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)

        assert [] == await client.consume({T0: 0}, max_wait_ms=1).poll()


async def test_partitions_of_all_leaders_are_consumed_and_their_ends_known() -> None:
    async with fake_cluster(3) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 2, 3)
        await client.produce("t", [Record(b"%d" % n, partition=n % 3) for n in range(9)])
        consumer = client.consume({T0: 0, T1: 0, T2: 3}, until={T0: 3, T1: 3, T2: 3})
        records = [record async for record in consumer]

        assert [(0, b"0"), (0, b"3"), (0, b"6"), (1, b"1"), (1, b"4"), (1, b"7")] == sorted(
            (r.partition, r.value) for r in records
        )
        assert {T0: 3, T1: 3} == consumer.high_watermarks


async def test_partitions_take_turns_at_the_head_of_a_request() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 1, 1)
        await client.produce("t", [Record(b"v", partition=0)])
        consumer = client.consume({T0: 0, T1: 0, T2: 0})
        await consumer.poll()

        assert [T1, T2, T0] == list(consumer.positions)


async def test_a_consumer_goes_on_at_the_new_leader() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        topic = cluster.add("t", 1)
        await client.produce("t", [Record(b"0")])
        consumer = client.consume({T0: 0})
        await anext(consumer)
        topic.leaders[0] = 2
        await client.produce("t", [Record(b"1")])

        assert b"1" == (await anext(consumer)).value


async def test_a_topic_that_was_deleted_and_created_again_is_found_by_its_new_id() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        consumer = client.consume({T0: 0}, max_wait_ms=1)
        await consumer.poll()
        del cluster.topics["t"]
        cluster.add("other", 1)
        cluster.add("t", 1)
        await client.produce("t", [Record(b"v")])

        assert b"v" == (await anext(consumer)).value


@pytest.mark.parametrize("fault", [Close(), ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH])
async def test_a_consumer_outlives_what_may_pass(fault: Close | ErrorCode) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        await client.produce("t", [Record(b"v")])
        cluster.faults[FETCH] = [fault]

        assert [b"v"] == [record.value for record in await read(client, T0)]


async def test_an_offset_that_is_not_in_the_log_is_named_and_reading_can_go_on() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 1)
        await client.produce("t", [Record(b"0", partition=0), Record(b"1", partition=1)])
        consumer = client.consume({T0: 0, T1: 7}, until={T0: 1, T1: 1_000})

        assert [b"0"] == [record.value for record in await consumer.poll()]
        with pytest.raises(OffsetOutOfRange, match="t-1: offset 7 is not in its log"):
            await consumer.poll()
        consumer.positions[T1] = 0
        assert [b"1"] == [record.value for record in await consumer.poll()]


async def test_a_corrupt_batch_is_told_after_those_before_it() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        topic = cluster.add("t", 1)
        await client.produce("t", [Record(b"good")])
        await client.produce("t", [Record(b"bad")])
        topic.logs[0][1][-1] ^= 1
        async with open_client(cluster.bootstrap, retry_timeout_s=0) as hasty:
            consumer = hasty.consume({T0: 0})

            assert [b"good"] == [record.value for record in await consumer.poll()]
            with pytest.raises(CorruptMessage):
                await consumer.poll()


async def test_control_batches_and_truncated_ends_are_passed_over() -> None:
    control = build_batch([(0, NOW, b"\0\0\0\1", bytes(6), ())], base_offset=0, is_control=True)
    data = build_batch([(0, NOW, None, b"v", ())], base_offset=1)
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        topic = cluster.add("t", 1)
        topic.logs[0] += [memoryview(control + data + data[:70]), memoryview(data)]
        consumer = client.consume({T0: 0})

        assert [(1, b"v")] == [(r.offset, r.value) for r in await consumer.poll()]


# --- Offsets and positions --------------------------------------------------------------------------------


async def test_offsets_are_listed_by_time_and_by_name_at_all_leaders() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 2)
        await client.produce("t", [Record(b"v", timestamp=NOW + n, partition=n % 2) for n in range(10)])

        assert {T0: ListedOffset(0, -1), T1: ListedOffset(5, -1)} == await client.list_offsets(
            {T0: EARLIEST, T1: LATEST}
        )
        assert {T0: ListedOffset(2, NOW + 4), T1: ListedOffset(-1, -1)} == await client.list_offsets(
            {T0: NOW + 3, T1: NOW + 10}
        )
        assert {T1: ListedOffset(4, NOW + 9)} == await client.list_offsets({T1: MAX_TIMESTAMP})


async def test_offsets_that_were_found_are_not_asked_for_again() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 2)
        cluster.faults[LIST_OFFSETS] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        await client.list_offsets({T0: LATEST, T1: LATEST})

        assert 3 == len(requests_of(cluster, LIST_OFFSETS))


async def test_a_leader_that_never_comes_is_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        cluster.faults[LIST_OFFSETS] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1_000
        with pytest.raises(NotLeaderOrFollower, match="^t-0: "):
            await client.list_offsets({T0: LATEST})


async def test_positions_of_a_group_are_committed_and_read_back() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        position = OffsetAndMetadata(7, 3, "halfway")
        await client.commit("g", {T0: position, T1: OffsetAndMetadata(0)})

        assert {T0: position} == await client.committed("g", [T0, T2])
        assert {T0: position, T1: OffsetAndMetadata(0)} == await client.committed("g")
        assert {} == await client.committed("another")
        assert Address("127.0.0.1", cluster.ports[1]) == await client.find_coordinator("g")


@pytest.mark.parametrize("key", [FIND_COORDINATOR, OFFSET_COMMIT])
async def test_a_coordinator_that_moves_is_found_again(key: int) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.faults[key] = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR]
        await client.commit("g", {T0: OffsetAndMetadata(7)})

        assert {T0: OffsetAndMetadata(7)} == await client.committed("g")


@pytest.mark.parametrize("key", [FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH])
async def test_what_a_group_is_refused_names_the_group(key: int) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.faults[key] = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
        ask = client.committed("g") if key == OFFSET_FETCH else client.commit("g", {T0: OffsetAndMetadata(7)})
        with pytest.raises(GroupAuthorizationFailed, match="^group g"):
            await ask
