"""Transactions of one librdkafka producer, and what it costs to read only committed records."""

from __future__ import annotations

import time
from statistics import median
from uuid import uuid4

from confluent_kafka import Producer

from bench.rdkafka import WrongCount
from korvet.protocol.record_batch import build_batch
from tests.support.wire import Wire, fetch_request, fetched, frame_of, produce_request, produced

LIMIT_S = 60.0
WARM_UP = 30
RECORDS = 100
RECORD = b"x" * 100


def producer(port: int) -> Producer:
    """Return a producer with a transactional id of its own."""
    opened = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "transactional.id": f"bench-{uuid4().hex}",
            "linger.ms": 0,
        }
    )
    opened.init_transactions(LIMIT_S)
    return opened


def rate(port: int, topic: str, *, partitions: int, count: int) -> float:
    """Commit transactions of 100 records of 100 B, one after the other. Return transactions per second."""
    opened = producer(port)
    for number in range(WARM_UP + count):
        if number == WARM_UP:
            began = time.perf_counter()
        transact(opened, topic, RECORDS, partitions)
    return count / (time.perf_counter() - began)


def round_trips_us(port: int, topic: str, count: int) -> float:
    """Commit transactions of one record. Return the median time of one in microseconds."""
    opened = producer(port)
    times_s = []
    for _ in range(WARM_UP + count):
        began = time.perf_counter()
        transact(opened, topic, 1, 1)
        times_s.append(time.perf_counter() - began)
    return median(times_s[WARM_UP:]) * 1e6


def committed_by_uncommitted(port: int, topic: str, count: int) -> float:
    """Fetch ten records at both isolation levels in turn. Return the ratio of their median times."""
    now_ms = int(time.time() * 1000)
    batch = bytes(build_batch([(number, now_ms, None, RECORD, ()) for number in range(10)]))
    times_s: tuple[list[float], list[float]] = ([], [])
    with Wire(port) as wire:
        wire.send(frame_of(produce_request(topic, batch)))
        offset = produced(wire.receive())
        requests = [
            frame_of(fetch_request(topic, offset, max_wait_ms=0, isolation_level=level)) for level in (0, 1)
        ]
        for _ in range(WARM_UP + count):
            for request, taken_s in zip(requests, times_s, strict=True):
                began = time.perf_counter()
                wire.send(request)
                answer = wire.receive()
                taken_s.append(time.perf_counter() - began)
                if not fetched(answer):
                    raise WrongCount("a fetch was answered without the records")
    uncommitted_s, committed_s = (median(each[WARM_UP:]) for each in times_s)
    return committed_s / uncommitted_s


def transact(opened: Producer, topic: str, records: int, partitions: int) -> None:
    """Commit one transaction. Raises WrongCount if a record was not acknowledged."""
    failures: list[object] = []
    opened.begin_transaction()
    for number in range(records):
        opened.produce(
            topic,
            RECORD,
            partition=number % partitions,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    opened.commit_transaction(LIMIT_S)
    if failures:
        raise WrongCount(f"{len(failures)} records were not acknowledged: {failures[0]}")
