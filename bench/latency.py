"""One record at a time: how long its acknowledgement takes, and how long until a waiting consumer has it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median, quantiles

from attrs import frozen
from korvet.protocol.codec import decode
from korvet.protocol.messages.fetch import FetchResponse
from korvet.protocol.messages.produce import ProduceResponse
from korvet.protocol.record_batch import build_batch

from bench.rdkafka import WrongCount
from bench.wire import FETCH, PRODUCE, VERSIONS, Wire, fetch_frame, produce_frame

WARM_UP = 100


@frozen
class Latency:
    """Of one run, in microseconds."""

    p50_us: float
    p99_us: float


def one_record() -> bytes:
    """A batch of one record of 100 bytes, made now."""
    now_ms = int(time.time() * 1000)
    return bytes(build_batch([(0, now_ms, None, b"x" * 100, ())], base_offset=0))


def produce_round_trips(port: int, topic: str, count: int) -> Latency:
    """Produce with acks=all, wait for the answer, again."""
    request = produce_frame(topic, one_record())
    times_s = []
    with Wire(port) as wire:
        for _ in range(WARM_UP + count):
            started = time.perf_counter()
            wire.send(request)
            body = wire.receive()
            times_s.append(time.perf_counter() - started)
            _produced_offset(body)
    return _latency(times_s[WARM_UP:])


def delivery(port: int, topic: str, count: int) -> Latency:
    """From sending a record until a consumer that waited for it on another connection has it."""
    request = produce_frame(topic, one_record())
    times_s = []
    with Wire(port) as producer, Wire(port) as consumer:
        producer.send(request)
        next_offset = _produced_offset(producer.receive()) + 1
        for _ in range(WARM_UP + count):
            consumer.send(fetch_frame(topic, next_offset, max_wait_ms=30_000))
            started = time.perf_counter()
            producer.send(request)
            body = consumer.receive()
            times_s.append(time.perf_counter() - started)
            _expect_records(body)
            next_offset = _produced_offset(producer.receive()) + 1
    return _latency(times_s[WARM_UP:])


def _produced_offset(body: memoryview) -> int:
    response, _ = decode(ProduceResponse, VERSIONS[PRODUCE], body)
    answer = response.responses[0].partition_responses[0]
    if answer.error_code:
        raise WrongCount(f"a record was refused: {answer!r}")
    offset: int = answer.base_offset
    return offset


def _expect_records(body: memoryview) -> None:
    response, _ = decode(FetchResponse, VERSIONS[FETCH], body)
    answer = response.responses[0].partitions[0]
    if answer.error_code or not sum(map(len, answer.records or ())):
        raise WrongCount(f"a fetch was answered without a record: {answer!r}")


def _latency(times_s: Sequence[float]) -> Latency:
    return Latency(median(times_s) * 1e6, quantiles(times_s, n=100)[98] * 1e6)
