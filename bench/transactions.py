"""Transactions of one librdkafka producer: how many in a second, and how long one with one record takes."""

from __future__ import annotations

import time
from statistics import median
from uuid import uuid4

from confluent_kafka import Producer

from bench.rdkafka import WrongCount

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
