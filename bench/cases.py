"""The cases, the systems, and the goals, most of which are ratios to Apache Kafka in the same run."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from bench.report import Case, Goal

KAFKA = "Apache Kafka"
MEMORY = "memory"
BATCH = "Redis, batch layout"
RECORD = "Redis, record layout"
TWO = "Redis, batch layout, 2 processes"
ECHO = "echo"
RAW_BATCH = "raw Redis, batches"
RAW_RECORD = "raw Redis, records"

BROKERS = (MEMORY, BATCH, RECORD, TWO, KAFKA)
#: The floor of each broker's figures.
FLOORS = {MEMORY: ECHO, BATCH: RAW_BATCH, RECORD: RAW_RECORD}


@frozen
class Load:
    """A load. `records` take about a second."""

    record_bytes: int
    partitions: int
    batch_bytes: int
    records: int
    records_in_record_layout: int
    client: str = ""  # appended to the case's name, if it is not the usual client

    def records_for(self, system: str) -> int:
        return self.records_in_record_layout if system in {RECORD, RAW_RECORD} else self.records

    def case(self, direction: str) -> Case:
        size = f"{self.record_bytes} B" if self.record_bytes < 1000 else f"{self.record_bytes // 1000} kB"
        batch = "1 MB" if self.batch_bytes == 1_000_000 else f"{self.batch_bytes // 1000} kB"
        return Case(f"{direction}, {size} ×{self.partitions}, {batch} batches{self.client}", "records/s")


SHORT_LOADS = (
    Load(100, 1, 1_000_000, 1_000_000, 300_000),
    Load(100, 12, 1_000_000, 1_000_000, 300_000),
    Load(100, 12, 16_000, 500_000, 200_000),
    Load(1_000, 1, 1_000_000, 200_000, 100_000),
    Load(1_000, 12, 1_000_000, 200_000, 100_000),
)
FULL_LOADS = (
    Load(100, 1, 1_000_000, 3_000_000, 1_000_000),
    Load(100, 12, 1_000_000, 3_000_000, 1_000_000),
    Load(100, 1, 16_000, 1_000_000, 500_000),
    Load(100, 12, 16_000, 1_000_000, 500_000),
    Load(1_000, 1, 1_000_000, 400_000, 200_000),
    Load(1_000, 12, 1_000_000, 400_000, 200_000),
    Load(1_000, 1, 16_000, 400_000, 200_000),
    Load(1_000, 12, 16_000, 400_000, 200_000),
)
#: With Kafka's own tools. A figure takes more records, because Java has to warm up.
JAVA_LOADS = (
    Load(100, 1, 1_000_000, 5_000_000, 1_000_000, ", Java client"),
    Load(1_000, 12, 16_000, 1_000_000, 300_000, ", Java client"),
)
#: Over TLS, for korvet in memory and for Kafka.
TLS_LOAD = Load(100, 1, 1_000_000, 1_000_000, 300_000, ", TLS")


def lower(name: str, unit: str) -> Case:
    return Case(name, unit, higher_is_better=False)


PRODUCED_P50 = lower("one record acknowledged, p50", "us")
PRODUCED_P99 = lower("one record acknowledged, p99", "us")
DELIVERED_P50 = lower("produced to consumed, p50", "us")
DELIVERED_P99 = lower("produced to consumed, p99", "us")
TRANSACTIONS = Case("transactions of 100 records in 3 partitions", "transactions/s")
TRANSACTION_P50 = lower("transaction of one record, p50", "us")
COMMITTED = lower("ten records fetched, read_committed by read_uncommitted, p50", "times")
REQUESTS = Case("100 connections, one record a request", "requests/s")
REQUEST_P99 = lower("100 connections, one record a request, p99", "us")
COLD_P50 = lower("1,000 archived records fetched, p50", "ms")
COLD_P99 = lower("1,000 archived records fetched, p99", "ms")
START = lower("start to first answer", "s")
IDLE = lower("resident memory, idle", "MB")
LOADED = lower("resident memory, after load", "MB")
IDLE_SERVER = lower("resident memory of its Valkey, idle", "MB")
LOADED_SERVER = lower("resident memory of its Valkey, after load", "MB")
SEEK_P50 = lower("ListOffsets by time, p50", "us")
SEEK_P99 = lower("ListOffsets by time, p99", "us")
SEEK_2100_P50 = lower("the same, first record of 2100, p50", "us")
SEEK_2100_P99 = lower("the same, first record of 2100, p99", "us")


def goals() -> dict[tuple[Case, str], tuple[Goal, ...]]:
    """Return goals by case and system: ratios where they name Kafka or a floor, otherwise absolute figures."""
    found: dict[tuple[Case, str], tuple[Goal, ...]] = {}
    for load in (*SHORT_LOADS, *FULL_LOADS, *JAVA_LOADS):
        found |= dict(_throughput(load))
    for direction in ("in", "out"):
        found[TLS_LOAD.case(direction), MEMORY] = (Goal(1.0, KAFKA),)
    for case in (PRODUCED_P50, PRODUCED_P99):
        found[case, MEMORY] = (Goal(0.8, KAFKA),)
    for case in (DELIVERED_P50, DELIVERED_P99):
        found[case, MEMORY] = (Goal(0.8, KAFKA),)
    for system in (BATCH, RECORD):
        found[PRODUCED_P50, system] = found[DELIVERED_P50, system] = (Goal(1.5, KAFKA),)
        found[DELIVERED_P99, system] = (Goal(1.0, KAFKA),)
    found[TRANSACTIONS, MEMORY] = (Goal(0.7, KAFKA),)
    found[TRANSACTIONS, BATCH] = (Goal(0.4, KAFKA),)
    found[TRANSACTION_P50, MEMORY] = (Goal(1.5, KAFKA),)
    for system in (MEMORY, BATCH, RECORD):
        found[COMMITTED, system] = (Goal(1.03),)
        found[REQUESTS, system] = (Goal(0.6, KAFKA),)
        found[COLD_P50, system] = (Goal(5.0),)
        found[START, system] = (Goal(0.5),)
        found[IDLE, system] = (Goal(60.0),)
        found[SEEK_P50, system] = found[SEEK_2100_P50, system] = (Goal(2_000.0),)
    return found


def _throughput(load: Load) -> Iterator[tuple[tuple[Case, str], tuple[Goal, ...]]]:
    into, out = load.case("in"), load.case("out")
    yield (into, MEMORY), (Goal(1.3, KAFKA),)
    yield (out, MEMORY), (Goal(1.0, KAFKA),)
    yield (into, BATCH), (Goal(0.8, KAFKA), Goal(0.7, RAW_BATCH))
    yield (out, BATCH), (Goal(0.5, KAFKA), Goal(0.7, RAW_BATCH))
    if load.record_bytes == 100:
        yield (into, RECORD), (Goal(350_000.0),)
        yield (out, RECORD), (Goal(600_000.0),)
