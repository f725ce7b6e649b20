"""Metrics and traces of records in Redis, whose batches are sent in several buffers."""

from __future__ import annotations

import pytest

from korvet.broker.broker import open_broker
from korvet.client import Record, TopicPartition, open_client
from korvet.config import Config
from korvet.metrics.lag import count_records
from korvet.metrics.recorder import Recorder
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import Record as StoredRecord
from korvet.testing.records import append, numbered
from tests.servers import RedisServer
from tests.talk import serving
from tests.tracing.spans import context_header, links, traced

pytestmark = pytest.mark.servers

SPAN_1 = "00f067aa0ba902b7"
TP = TopicPartition("orders", 0)
EACH_LAYOUT = pytest.mark.parametrize("layout", ["record", "batch"])


async def consume(bootstrap_servers: str, end: int) -> list[bytes | None]:
    async with open_client(bootstrap_servers) as client:
        return [each.value async for each in client.consume({TP: 0}, until={TP: end})]


@EACH_LAYOUT
@pytest.mark.parametrize("value_bytes", [1, 200, 10_000])
async def test_fetched_records_are_counted(redis_server: RedisServer, layout: str, value_bytes: int) -> None:
    recorder, value = Recorder(10), b"v" * value_bytes
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {"storage.layout": layout})
        async with (
            serving(storage=storage, counters=recorder) as server,
            open_client(server.bootstrap_servers) as client,
        ):
            await client.produce("orders", [Record(value=value) for _ in range(2_000)])
            end = (await storage.latest(TP)).high_watermark
            values = await consume(server.bootstrap_servers, end)
        samples = recorder.samples()

    assert [value] * 2_000 == values
    for direction in ("received", "sent"):
        assert {("orders",): 2_000} == samples[f"korvet_topic_{direction}_records_total"]


@EACH_LAYOUT
@pytest.mark.parametrize("value_bytes", [1, 200, 500])
async def test_fetch_has_links_to_the_spans_that_produced(
    redis_server: RedisServer, layout: str, value_bytes: int
) -> None:
    # Batches of up to 64 kB are searched, and those above 16 kB are sent in two buffers.
    records = [Record(value=b"v" * value_bytes) for _ in range(99)]
    records.insert(50, Record(value=b"v", headers=(context_header(SPAN_1),)))
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {"storage.layout": layout})
        async with traced(storage) as broker:
            async with open_client(broker.server.bootstrap_servers) as client:
                await client.produce("orders", records)
            end = (await storage.latest(TP)).high_watermark
            values = await consume(broker.server.bootstrap_servers, end)

            assert 100 == len(values)
            assert [SPAN_1] == [link for span in broker.spans("Fetch") for link in links(span)]


@EACH_LAYOUT
async def test_lag_is_counted_over_batches_of_every_size(redis_server: RedisServer, layout: str) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {"storage.layout": layout})
        for size in (1, 1_000, 50_000):
            await append(storage, TP, [StoredRecord(b"v" * size) for _ in range(40)])
        await append(storage, TP, numbered(30))
        bounds = await storage.latest(TP)
        broker = await open_broker(storage, Config())

        assert 150 == await count_records(broker, TP, bounds.log_start_offset, bounds.high_watermark, 10_000)
