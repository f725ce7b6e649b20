from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define

from korvet.broker.context import PendingResponse, RequestContext
from korvet.concurrency.histograms import SECONDS
from korvet.metrics.definitions import METRICS
from korvet.metrics.recorder import OTHER, Phases, Recorder
from korvet.metrics.samples import Samples, merged
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsResponse
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import build_batch
from korvet.protocol.requests import encode_request
from korvet.protocol.response_errors import finder
from tests.talk import Client, connect, reset, serving


def produce_to(topic: str, *, records: int = 2, partition: int = 0) -> ProduceRequest:
    batch = build_batch([(index, 0, None, b"value", ()) for index in range(records)])
    data = PartitionProduceData(index=partition, records=(batch,))
    return ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch_from(topic: str) -> FetchRequest:
    partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000_000,
        topics=[FetchTopic(topic=topic, partitions=partitions)],
    )


async def create(client: Client, topic: str) -> None:
    wanted = [MetadataRequestTopic(name=topic)]
    await client.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=True), 9)


@asynccontextmanager
async def counted(most_topics: int = 10, **settings: Any) -> AsyncIterator[tuple[Recorder, Client]]:
    """Serve with a recorder, and connect a client."""
    recorder = Recorder(most_topics)
    async with serving(counters=recorder, **settings) as server, connect(server) as client:
        yield recorder, client


class Watched(Recorder):
    """Lets a test wait until a connection was closed."""

    def __init__(self) -> None:
        super().__init__(10)
        self.was_closed = trio.Event()

    def closed(self, listener: str, software: tuple[str, str] | None, connections: int) -> None:
        super().closed(listener, software, connections)
        self.was_closed.set()


async def test_requests_are_counted_by_api_and_version_with_their_bytes() -> None:
    async with counted() as (recorder, client):
        size = len(client.frame_of(MetadataRequest(topics=[]), 9)) - 4
        for _ in range(3):
            await client.ask(MetadataRequest(topics=[]), 9)
        bytes_of_v9 = recorder.samples()["korvet_request_bytes_total"]
        await client.ask(MetadataRequest(topics=[]), 12)
        samples = recorder.samples()

    assert {("Metadata", "9"): 3, ("Metadata", "12"): 1} == samples["korvet_requests_total"]
    assert {("Metadata",): 3 * size} == bytes_of_v9
    assert {("Metadata",)} == set(samples["korvet_response_bytes_total"])


async def test_every_error_code_of_a_response_is_counted() -> None:
    async with counted(auto_create_topics_enable=False) as (recorder, client):
        await client.ask(produce_to("missing"), 9)
        await client.ask(produce_to("missing"), 9)
        await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="missing")]), 9)
        errors = recorder.samples()["korvet_response_errors_total"]

    expected = {("Produce", "UNKNOWN_TOPIC_OR_PARTITION"): 2, ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"): 1}
    assert expected == errors


async def test_records_batches_and_bytes_are_counted_by_topic_in_both_directions() -> None:
    async with counted() as (recorder, client):
        await create(client, "orders")
        await client.ask(produce_to("orders", records=3), 9)
        await client.ask(produce_to("orders", records=4), 9)
        await client.ask(fetch_from("orders"), 4)
        samples = recorder.samples()

    for direction in ("received", "sent"):
        for what, value in (("records", 7), ("batches", 2)):
            assert {("orders",): value} == samples[f"korvet_topic_{direction}_{what}_total"]
    assert samples["korvet_topic_received_bytes_total"] == samples["korvet_topic_sent_bytes_total"]


async def test_topics_above_the_limit_are_counted_as_other() -> None:
    async with counted(most_topics=1) as (recorder, client):
        for topic in ("a", "b", "c"):
            await create(client, topic)
            await client.ask(produce_to(topic, records=2), 9)
        records = recorder.samples()["korvet_topic_received_records_total"]

    assert {("a",): 2, (OTHER,): 4} == records


async def test_each_request_is_observed_once_in_every_phase_it_passes() -> None:
    async with counted() as (recorder, client):
        await create(client, "orders")
        for _ in range(5):
            await client.ask(produce_to("orders"), 9)
        phases = recorder.samples()["korvet_request_phase_seconds"]

    of_produce = {phase: sum(values[:-1]) for (api, phase), values in phases.items() if api == "Produce"}
    assert dict.fromkeys(("received", "queued", "handled", "stored", "sent"), 5) == of_produce
    assert ("Metadata", "stored") not in phases


async def test_request_that_arrives_in_parts_takes_time_to_be_received() -> None:
    async with counted() as (recorder, client):
        frame = client.frame_of(MetadataRequest(topics=[]), 9)
        await client.send(frame[:6])
        await trio.sleep(0.05)  # the measured time, not a wait for the broker
        await client.send(frame[6:])
        await client.answer(MetadataRequest, 9)
        received = recorder.samples()["korvet_request_phase_seconds"]["Metadata", "received"]

    assert received[-1] >= 0.02
    assert 1 == sum(received[:-1])


async def test_quick_requests_are_counted_with_the_times_of_a_sample() -> None:
    async with counted() as (recorder, client):
        await create(client, "orders")
        frames = [client.frame_of(produce_to("orders"), 9) for _ in range(200)]
        await client.send(b"".join(frames))
        for _ in frames:
            await client.answer(ProduceRequest, 9)
        first = recorder.samples()
        await client.ask(produce_to("orders"), 9)
        second = recorder.samples()

    for samples, count in ((first, 200), (second, 201)):
        phases = samples["korvet_request_phase_seconds"]
        assert count == samples["korvet_requests_total"]["Produce", "9"]
        assert count == samples["korvet_topic_received_batches_total"][("orders",)]
        for phase in ("received", "queued", "handled", "stored", "sent"):
            assert count == sum(phases["Produce", phase][:-1])
            assert 0 <= phases["Produce", phase][-1] < 30


@define
class Timed:
    """An exchange that was handled for `handled_s`, of which `stored_s` were the store's."""

    handled_s: float
    context: RequestContext
    began: float = 1.0
    received_s: float = 0.0
    queued_s: float = 0.0
    pending: PendingResponse | None = None

    @property
    def handled_at(self) -> float:
        return self.began + self.handled_s

    answered_at = handled_at


def test_quick_requests_after_a_slow_first_one_are_counted_in_every_phase() -> None:
    phases = Phases()
    context = RequestContext(9, "client", is_timed=True, stored_s=0.5)
    phases.observe(Timed(1.0, context), 2.1)  # type: ignore[arg-type]  # without its request
    phases.repeats += 3
    phases.flush()

    for histogram in (phases.handled, phases.stored, phases.sent):
        assert 4 == sum(histogram[:-1])
        assert 3 == sum(histogram[: bisect_left(SECONDS, 0.001) + 1])


async def test_every_slow_request_is_observed_even_if_the_one_before_was_just_timed() -> None:
    async with counted() as (recorder, client):
        await create(client, "orders")
        quick, slow = fetch_from("orders"), fetch_from("orders")
        slow.max_wait_ms, slow.min_bytes = 30, 1
        await client.send(client.frame_of(quick, 4) + client.frame_of(slow, 4))
        for _ in range(2):
            await client.answer(FetchRequest, 4)
        handled = recorder.samples()["korvet_request_phase_seconds"]["Fetch", "handled"]

    assert 1 == sum(handled[bisect_left(SECONDS, 0.025) : -1])
    assert 2 == sum(handled[:-1])
    assert handled[-1] >= 0.025


async def test_request_whose_client_leaves_before_its_response_is_counted() -> None:
    recorder = Watched()
    async with serving(counters=recorder) as server, connect(server) as client, connect(server) as leaving:
        await create(client, "orders")
        data = PartitionProduceData(index=0, records=(build_batch([(0, 0, None, bytes(900_000), ())]),))
        topics = [TopicProduceData(name="orders", partition_data=[data])]
        for _ in range(30):
            await client.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), 9)
        fetch = fetch_from("orders")
        fetch.max_bytes = fetch.topics[0].partitions[0].partition_max_bytes = 40_000_000
        await leaving.send(leaving.frame_of(fetch, 4))
        await leaving.stream.receive_some(1)  # the response is larger than the socket's buffers
        reset(leaving)
        await recorder.was_closed.wait()
        samples = recorder.samples()

    assert 1 == samples["korvet_requests_total"]["Fetch", "4"]
    assert 0 == samples["korvet_response_bytes_total"][("Fetch",)]


async def test_versions_that_do_not_exist_are_counted_together() -> None:
    async with counted() as (recorder, client):
        for version in (99, 100, 99):
            await client.send(struct.pack(">ihhihb", 11, 18, version, 1, -1, 0))
            await client.receive()
        requests = recorder.samples()["korvet_requests_total"]

    assert {("ApiVersions", OTHER): 3} == requests


async def test_requests_with_bytes_left_over_are_counted() -> None:
    recorder = Recorder(most_topics=10)
    data = encode_request(MetadataRequest(topics=[]), 9, 1, "test")
    async with serving(counters=recorder) as server, connect(server) as client:
        body = b"".join(data)[4:] + b"!"
        await client.send(len(body).to_bytes(4, "big") + body)
        await client.answer(MetadataRequest, 9)

    assert {("Metadata",): 1} == recorder.samples()["korvet_requests_with_bytes_left_over_total"]


async def test_connections_are_counted_by_listener_and_client_software() -> None:
    recorder = Watched()
    async with serving(counters=recorder) as server, connect(server) as client:
        unknown = recorder.samples()["korvet_connections"]
        await client.ask(
            ApiVersionsRequest(client_software_name="apache-kafka", client_software_version="4.0"), 3
        )
        known = recorder.samples()["korvet_connections"]
        await client.stream.aclose()
        await recorder.was_closed.wait()
        ended = recorder.samples()["korvet_connections"]
        opened = recorder.samples()["korvet_connections_opened_total"]

    assert {("PLAINTEXT", "unknown", "unknown"): 1} == unknown
    assert 1 == known["PLAINTEXT", "apache-kafka", "4.0"]
    assert 0 == known["PLAINTEXT", "unknown", "unknown"]
    assert not any(ended.values())
    assert {("PLAINTEXT",): 1} == opened


async def test_software_that_is_not_a_name_stays_unknown() -> None:
    async with counted() as (recorder, client):
        await client.ask(ApiVersionsRequest(client_software_name='"\n', client_software_version=""), 3)
        known = recorder.samples()["korvet_connections"]

    assert {("PLAINTEXT", "unknown", "unknown"): 1} == known


async def test_connections_that_violate_the_protocol_are_counted() -> None:
    async with counted() as (recorder, client):
        await client.send(b"\0\0\0\x04\x7f\xff\0\0")
        await client.closed()
        aborted = recorder.samples()["korvet_connections_aborted_total"]

    assert {("protocol",): 1} == aborted


def test_responses_with_arrays_encoded_in_advance_are_searched_elsewhere() -> None:
    find = finder(DescribeLogDirsResponse)
    codes: list[int] = []
    assert find is not None
    find(DescribeLogDirsResponse(error_code=31, results=[]), codes)

    assert [31] == codes


def test_values_of_several_processes_are_merged_by_the_rule_of_their_metric() -> None:
    histogram = [1.0, *[0.0] * len(SECONDS), 0.5]
    one: Samples = {
        "korvet_requests_total": {("Fetch", "4"): 1, ("Fetch", "5"): 2},
        "korvet_ready": {(): 0},
        "process_max_fds": {(): 100},
        "korvet_event_loop_delay_seconds": {(): histogram},
    }
    other: Samples = {
        "korvet_requests_total": {("Fetch", "4"): 10},
        "korvet_ready": {(): 1},
        "process_max_fds": {(): 50},
        "korvet_event_loop_delay_seconds": {(): histogram},
    }

    both = merged([one, other])

    assert {("Fetch", "4"): 11, ("Fetch", "5"): 2} == both["korvet_requests_total"]
    assert {(): 1} == both["korvet_ready"]
    assert {(): 50} == both["process_max_fds"]
    assert {(): [2.0, *[0.0] * len(SECONDS), 1.0]} == both["korvet_event_loop_delay_seconds"]
    assert {(): 0} == one["korvet_ready"]


def test_recorder_has_only_defined_metrics() -> None:
    assert set() == set(Recorder(1).samples()) - set(METRICS)
