"""Latency of single records: until the acknowledgement, and until a waiting consumer receives the record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median, quantiles

from attrs import frozen

from bench.rdkafka import WrongCount
from korvet.protocol.record_batch import build_batch
from tests.support.wire import Wire, fetch_request, fetched, frame_of, produce_request, produced

WARM_UP = 100


@frozen
class Latency:
    """Latencies of one run, in microseconds."""

    p50_us: float
    p99_us: float


def one_record() -> bytes:
    """Return a batch of one record of 100 bytes with the current time."""
    return bytes(build_batch([(0, int(time.time() * 1000), None, b"x" * 100, ())]))


def produce_round_trips(port: int, topic: str, count: int) -> Latency:
    """Produce with acks=all, wait for the response, repeat."""
    request = frame_of(produce_request(topic, one_record()))
    with Wire(port) as wire:
        times_s = [acknowledged_s(wire, request) for _ in range(WARM_UP + count)]
    return latency_of(times_s[WARM_UP:])


def delivery(port: int, topic: str, count: int) -> Latency:
    """Measure from sending a record until a waiting consumer on another connection receives it."""
    request = frame_of(produce_request(topic, one_record()))
    times_s = []
    with Wire(port) as producer, Wire(port) as consumer:
        producer.send(request)
        next_offset = produced(producer.receive()) + 1
        for _ in range(WARM_UP + count):
            consumer.send(frame_of(fetch_request(topic, next_offset, max_wait_ms=30_000)))
            took_s, next_offset = delivered_s(producer, consumer, request)
            times_s.append(took_s)
    return latency_of(times_s[WARM_UP:])


def acknowledged_s(wire: Wire, request: bytes) -> float:
    """Return the seconds until a Produce request is answered."""
    started = time.perf_counter()
    wire.send(request)
    answer = wire.receive()
    took_s = time.perf_counter() - started
    produced(answer)
    return took_s


def delivered_s(producer: Wire, consumer: Wire, request: bytes) -> tuple[float, int]:
    """Return the seconds from a Produce until the waiting Fetch is answered, and the offset after the record.

    Raises WrongCount if the Fetch is answered without the record.
    """
    started = time.perf_counter()
    producer.send(request)
    answer = consumer.receive()
    took_s = time.perf_counter() - started
    if not fetched(answer):
        raise WrongCount("a fetch was answered without the record")
    return took_s, produced(producer.receive()) + 1


def latency_of(times_s: Sequence[float]) -> Latency:
    """Return the median and the 99th percentile."""
    return Latency(median(times_s) * 1e6, quantiles(times_s, n=100)[98] * 1e6)
