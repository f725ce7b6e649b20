"""Spans of requests and of the storage: their attributes, parents, links and ends."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import confluent_kafka
import pytest
import trio
from opentelemetry.trace import SpanKind, StatusCode

from korvet.client import Record, TopicPartition, open_client
from korvet.client.membership import group_consumer
from korvet.protocol.compression import Codec
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.storage.memory import MemoryStorage
from korvet.testing.records import Producer, numbered
from korvet.testing.records import batch as batch_of
from korvet.tracing import names
from korvet.tracing.names import REQUEST_ATTRIBUTES, STORAGE_ATTRIBUTES
from tests.handlers.support import Shim, away
from tests.server.storage import SlowStorage
from tests.talk import connect
from tests.tracing.spans import Traced, attributes, context_header, ids, links, traced

SPAN_1, SPAN_2 = "00f067aa0ba902b7", "00f067aa0ba902b8"
WITHOUT_TRACES = """
import sys, trio
from korvet import open_server
from korvet.client import Record, open_client

async def main():
    async with open_server() as server, open_client(server.bootstrap_servers) as client:
        await client.produce("orders", [Record(value=b"1")], create_topic=True)

trio.run(main)
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry", "korvet.tracing"))))
"""


async def produce(broker: Traced, *records: Record, codec: Codec = Codec.NONE) -> None:
    async with open_client(broker.server.bootstrap_servers) as client:
        await client.produce("orders", list(records), create_topic=True, codec=codec)


def request(payload: bytes, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=[payload])
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="orders", partition_data=[data])]
    )


@pytest.mark.clients
async def test_requests_of_a_real_client_have_spans_with_attributes() -> None:
    async with traced() as broker:

        def talk() -> list[bytes]:
            settings: dict[str, Any] = {
                "bootstrap.servers": broker.server.bootstrap_servers,
                "client.id": "till",
            }
            producer = confluent_kafka.Producer(settings)
            for value in (b"1", b"2"):
                producer.produce("orders", value)
            assert 0 == producer.flush(20)
            settings |= {"group.id": "billing", "auto.offset.reset": "earliest"}
            consumer = confluent_kafka.Consumer(settings)
            consumer.subscribe(["orders"])
            messages = consumer.consume(2, 20)
            consumer.close()
            return [message.value() for message in messages]

        assert [b"1", b"2"] == await trio.to_thread.run_sync(talk)

        spans = broker.spans("Produce")
        assert 2 == sum(attributes(span)[names.RECORDS] for span in spans)
        span = spans[0]
        assert SpanKind.SERVER is span.kind
        assert StatusCode.UNSET is span.status.status_code
        assert (
            attributes(span).items()
            >= {
                names.SYSTEM: "kafka",
                names.OPERATION: "Produce",
                names.CLIENT_ID: "till",
                names.TOPIC: "orders",
                names.LISTENER: "PLAINTEXT",
            }.items()
        )
        assert attributes(span)[names.ADDRESS] in ("127.0.0.1", "::1")
        assert attributes(span)[names.REQUEST_BYTES] > 60
        assert attributes(span)[names.RESPONSE_BYTES] > 30
        append = broker.spans("storage begin_append")[0]
        assert SpanKind.INTERNAL is append.kind
        assert append.parent == span.context
        assert {names.PARTITIONS: 1} == attributes(append)
        for api in ("JoinGroup", "SyncGroup", "OffsetCommit", "LeaveGroup"):
            assert "billing" == attributes(broker.spans(api)[0])[names.GROUP]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_span_that_produced_all_records_is_the_parent(codec: Codec) -> None:
    async with traced() as broker:
        header = context_header(SPAN_1)
        await produce(
            broker, *(Record(value=b"%d" % number, headers=(header,)) for number in range(3)), codec=codec
        )

        span = broker.span("Produce")
        assert (header[1][3:35].decode(), SPAN_1) == ids(span)
        assert [] == links(span)


async def test_spans_that_produced_the_records_are_links() -> None:
    async with traced() as broker:
        records = [
            Record(value=b"1", partition=0, headers=(context_header(each),))
            for each in (SPAN_1, SPAN_2, SPAN_1)
        ]
        await produce(broker, *records, Record(value=b"none", partition=0))
        async with open_client(broker.server.bootstrap_servers) as client:
            async for _ in client.consume(
                {TopicPartition("orders", 0): 0}, until={TopicPartition("orders", 0): 4}
            ):
                pass

        assert [SPAN_1, SPAN_2] == links(broker.span("Produce"))
        assert "" == ids(broker.span("Produce"))[1]
        assert [SPAN_1, SPAN_2] == links(broker.span("Fetch"))


@pytest.mark.parametrize("header", [b"", b"00-0-0-01", b"\xff" * 55], ids=["empty", "short", "no text"])
async def test_invalid_context_is_ignored(header: bytes) -> None:
    async with traced() as broker:
        await produce(broker, Record(value=b"1", headers=(("traceparent", header),)))

        assert "" == ids(broker.span("Produce"))[1]
        assert [] == links(broker.span("Produce"))


async def test_decision_of_the_producer_not_to_sample_is_followed() -> None:
    async with traced() as broker:
        await produce(broker, Record(value=b"1", headers=(context_header(SPAN_1, is_sampled=False),)))

        assert [] == broker.spans("Produce")
        assert [] == broker.spans("storage begin_append")
        assert broker.spans("Metadata")


async def test_error_code_is_the_type_of_the_error() -> None:
    async with traced() as broker, connect(broker.server) as client:
        await client.ask(HeartbeatRequest(group_id="billing", generation_id=1, member_id="x"), 4)

        span = broker.span("Heartbeat")
        assert "UNKNOWN_MEMBER_ID" == attributes(span)[names.ERROR]
        assert StatusCode.ERROR is span.status.status_code


async def test_error_of_a_partition_is_in_both_spans() -> None:
    storage = MemoryStorage()
    await storage.create_topic("orders", 1, {})
    payload = bytes(batch_of(numbered(1), producer=Producer(2**52, 0, 5)).buffer)
    async with traced(storage) as broker, connect(broker.server) as client:
        await client.ask(request(payload), 9)

        for span in (broker.span("storage begin_append"), broker.span("Produce")):
            assert "OUT_OF_ORDER_SEQUENCE_NUMBER" == attributes(span)[names.ERROR]
            assert StatusCode.ERROR is span.status.status_code


async def test_error_of_a_call_is_in_its_span() -> None:
    async with traced(Shim(MemoryStorage(), committed=away)) as broker, connect(broker.server) as client:
        await client.ask(OffsetFetchRequest(group_id="billing", topics=None), 7)

        assert "KAFKA_STORAGE_ERROR" == attributes(broker.span("storage committed"))[names.ERROR]
        assert "COORDINATOR_NOT_AVAILABLE" == attributes(broker.span("OffsetFetch"))[names.ERROR]


async def test_pending_append_has_a_span_until_its_answer() -> None:
    storage = MemoryStorage()
    await storage.create_topic("orders", 1, {})
    slow = SlowStorage(storage)
    shim = Shim(storage, begin_append=slow.begin_append)
    async with traced(shim) as broker, connect(broker.server) as client:
        payload = bytes(batch_of(numbered(1)).buffer)
        await client.send(client.frame_of(request(payload), 9))
        await slow.until_begun(1)
        assert [] == broker.spans("Produce")
        slow.begun[0].set()
        await client.receive()

        assert broker.span("storage append").parent == broker.span("Produce").context


async def test_request_without_an_answer_ends_its_span() -> None:
    storage = MemoryStorage()
    await storage.create_topic("orders", 1, {})
    slow = SlowStorage(storage)
    async with traced(Shim(storage, begin_append=slow.begin_append)) as broker:
        async with connect(broker.server) as client:
            await client.send(client.frame_of(request(bytes(batch_of(numbered(1)).buffer)), 9))
            await slow.until_begun(1)
        broker.server.stop()
        broker.server.stop()
        with trio.fail_after(10):
            while not broker.spans("Produce"):  # noqa: ASYNC110  the exporter sets no event
                await trio.sleep(0.01)

        assert "unanswered" == attributes(broker.span("Produce"))[names.ERROR]


async def test_produce_without_acks_is_no_error() -> None:
    async with traced() as broker:
        await produce(broker, Record(value=b"1"))
        async with connect(broker.server) as client:
            await client.send(client.frame_of(request(bytes(batch_of(numbered(1)).buffer), acks=0), 9))
            await client.ask(HeartbeatRequest(group_id="billing", generation_id=1, member_id="x"), 4)

        span = broker.spans("Produce")[1]
        assert names.ERROR not in attributes(span)
        assert names.RESPONSE_BYTES not in attributes(span)


async def test_background_tasks_have_no_spans() -> None:
    async with traced() as broker:
        await broker.server.broker.check_store()

        assert [] == broker.spans("storage load")


async def test_every_documented_attribute_is_in_use() -> None:
    async with traced() as broker:
        await produce(broker, Record(value=b"1"))
        async with (
            open_client(broker.server.bootstrap_servers) as client,
            group_consumer(client, "billing", ["orders"]) as member,
        ):
            assert await member.poll()
        async with connect(broker.server) as connection:
            await connection.ask(HeartbeatRequest(group_id="billing", generation_id=1, member_id="x"), 4)

        used = {name for span in broker._exporter.get_finished_spans() for name in attributes(span)}
        assert {*REQUEST_ATTRIBUTES, *STORAGE_ATTRIBUTES} == used | {names.PRINCIPAL}


def test_broker_without_traces_imports_nothing_for_them() -> None:
    found = subprocess.run([sys.executable, "-c", WITHOUT_TRACES], capture_output=True, text=True, check=True)

    assert "[]" == found.stdout.strip()
