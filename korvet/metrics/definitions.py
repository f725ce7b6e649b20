"""Every metric: its name, kind, labels and meaning. docs/metrics.md, the exposition and the tests derive from this.

Names and units follow Prometheus' conventions: seconds, bytes, `_total` for counters.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from attrs import frozen

from korvet.concurrency.histograms import SECONDS


class Kind(Enum):
    """The kinds of metrics, by Prometheus' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(Enum):
    """The rule that merges the values of several processes of one broker."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Scope(Enum):
    """Kinds of scopes: which values several brokers on one store return."""

    BROKER = "broker"  # add the values of several brokers
    STORE = "store"  # brokers on the same store return the same value: take the maximum


@frozen
class Metric:
    """The definition of a metric."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    scope: Scope = Scope.BROKER
    merge: Merge = Merge.SUM
    buckets: tuple[float, ...] = SECONDS  # of a histogram


def _counter(name: str, help_: str, *labels: str, scope: Scope = Scope.BROKER) -> Metric:
    merge = Merge.SUM if scope is Scope.BROKER else Merge.MAX
    return Metric(name, Kind.COUNTER, labels, help_, scope, merge)


def _gauge(
    name: str, help_: str, *labels: str, scope: Scope = Scope.BROKER, merge: Merge | None = None
) -> Metric:
    default = Merge.SUM if scope is Scope.BROKER else Merge.MAX
    return Metric(name, Kind.GAUGE, labels, help_, scope, merge or default)


def _histogram(name: str, help_: str, *labels: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, labels, help_)


_STORE = Scope.STORE

#: The metrics by the title of their group.
GROUPS: dict[str, tuple[Metric, ...]] = {
    "Requests": (
        _counter(
            "korvet_requests_total",
            "Requests that were handled. `other` are versions of the API that are not served.",
            "api",
            "version",
        ),
        _counter(
            "korvet_response_errors_total",
            "Error codes in responses, one for each partition or other resource with an error.",
            "api",
            "error",
        ),
        _counter("korvet_request_bytes_total", "Bytes of requests.", "api"),
        _counter("korvet_response_bytes_total", "Bytes of responses.", "api"),
        _counter(
            "korvet_requests_with_bytes_left_over_total",
            "Requests with bytes behind their last field, which the broker ignored.",
            "api",
        ),
        _histogram(
            "korvet_request_phase_seconds",
            "Time of requests in each phase: `received` (the rest of a request that came in parts arrives), `queued`"
            " (it waits for earlier requests of its connection, or for memory), `handled` (its handler runs or waits"
            " for records or members), `stored` (the store appends its records), `sent` (its response is written)."
            " All requests that take 1 ms or more are observed. Of quicker ones in quick succession, a connection"
            " observes one in 5 ms, and counts the others with its times.",
            "api",
            "phase",
        ),
    ),
    "Records": (
        _counter("korvet_topic_received_records_total", "Records that clients appended.", "topic"),
        _counter("korvet_topic_received_batches_total", "Record batches that clients appended.", "topic"),
        _counter(
            "korvet_topic_received_bytes_total", "Bytes of record batches that clients appended.", "topic"
        ),
        _counter("korvet_topic_sent_records_total", "Records in responses to fetches.", "topic"),
        _counter("korvet_topic_sent_batches_total", "Record batches in responses to fetches.", "topic"),
        _counter(
            "korvet_topic_sent_bytes_total", "Bytes of record batches in responses to fetches.", "topic"
        ),
    ),
    "Connections": (
        _gauge(
            "korvet_connections",
            "Open connections by the software of their clients, which clients send since Kafka 2.4.",
            "listener",
            "software",
            "software_version",
        ),
        _counter("korvet_connections_opened_total", "Connections that were accepted.", "listener"),
        _counter(
            "korvet_connections_aborted_total",
            "Connections that the broker closed: `protocol` (malformed bytes), `refused` (a request that can only be"
            " answered so, such as a failed produce with acks=0), `overdue` (idle or too slow), `internal` (an error"
            " in korvet).",
            "reason",
        ),
    ),
    "Topics and groups": (
        _gauge("korvet_topics", "Topics.", scope=_STORE),
        _gauge("korvet_partitions", "Partitions of all topics.", scope=_STORE),
        _gauge(
            "korvet_groups", "Groups by state, with Kafka's names.", "state", scope=_STORE, merge=Merge.SUM
        ),
        _gauge("korvet_group_members", "Members of a group.", "group", scope=_STORE, merge=Merge.SUM),
        _gauge(
            "korvet_group_lag_records",
            "Records behind a group's committed offsets, in all partitions of the topic. If offsets follow the clock"
            " (`offset.mapping=timestamp`), the records are counted, at most 10,000 of a partition.",
            "group",
            "topic",
            scope=_STORE,
            merge=Merge.SUM,
        ),
        _gauge(
            "korvet_group_lag_seconds",
            "Time between the last record before a group's committed offset and the last record, in the partition"
            " where it is longest. Only for topics whose offsets follow the clock (`offset.mapping=timestamp`).",
            "group",
            "topic",
            scope=_STORE,
        ),
    ),
    "Maintenance": (
        _counter(
            "korvet_retention_trims_total", "Partitions that retention has trimmed, apart from appends."
        ),
        _counter("korvet_retention_errors_total", "Partitions that retention could not trim."),
        _gauge(
            "korvet_retention_last_run_timestamp_seconds",
            "End of the last run of retention, Unix time. One broker on a store runs it.",
            merge=Merge.MAX,
        ),
        _counter("korvet_compactions_total", "Compactions of partitions."),
        _counter("korvet_compaction_errors_total", "Compactions that failed."),
        _counter("korvet_compaction_removed_bytes_total", "Bytes by which compactions have reduced logs."),
        _counter("korvet_compaction_seconds_total", "Time of compactions."),
        _gauge(
            "korvet_archive_lag_records",
            "Records of a tiered topic that are not archived. Only for topics whose offsets count records.",
            "topic",
            scope=_STORE,
        ),
        _gauge(
            "korvet_archive_lag_seconds",
            "Time between the last archived record and the last record of a tiered topic, in the partition where it"
            " is longest. Only for topics whose offsets follow the clock.",
            "topic",
            scope=_STORE,
        ),
        _counter("korvet_remote_requests_total", "Requests for archived records and offsets."),
        _counter("korvet_remote_errors_total", "Requests for archived records and offsets that failed."),
        _counter("korvet_remote_read_bytes_total", "Bytes of archived records that were read."),
        _histogram("korvet_remote_request_seconds", "Time of requests for archived records and offsets."),
    ),
    "Redis": (
        _gauge("korvet_redis_connected", "Processes that are connected to Redis."),
        _counter("korvet_redis_reconnects_total", "Connections to Redis that were lost."),
        _counter(
            "korvet_redis_commands_total", "Commands, or groups of commands in one write, that were answered."
        ),
        _histogram(
            "korvet_redis_round_trip_seconds",
            "Time from the write of a command until its reply, without waits.",
        ),
        _counter("korvet_redis_script_calls_total", "Calls of Lua scripts, by all clients.", scope=_STORE),
        _counter("korvet_redis_script_seconds_total", "Time in Lua scripts, of all clients.", scope=_STORE),
        _gauge("korvet_redis_memory_used_bytes", "Memory that Redis uses (`used_memory`).", scope=_STORE),
        _gauge(
            "korvet_redis_memory_limit_bytes",
            "Limit of that memory (`maxmemory`); 0 is unlimited.",
            scope=_STORE,
        ),
        _counter("korvet_redis_evicted_keys_total", "Keys that Redis has evicted.", scope=_STORE),
        _gauge("korvet_redis_replicas", "Connected replicas.", scope=_STORE),
        _gauge(
            "korvet_redis_replica_lag_bytes",
            "Bytes of the replication stream that a replica has not acknowledged.",
            "replica",
            scope=_STORE,
        ),
        _gauge(
            "korvet_redis_persistence_ok",
            "1 if the last write of the append-only file (`aof`) or snapshot (`rdb`) succeeded.",
            "kind",
            scope=_STORE,
            merge=Merge.MIN,
        ),
    ),
    "Memory": (
        _gauge(
            "korvet_memory_budget_used_bytes",
            "Memory in use: `requests` (received and unanswered), `responses` (records that are read or sent),"
            " `decompressed` (decompressed records that are being stored).",
            "budget",
        ),
        _gauge("korvet_memory_budget_limit_bytes", "Limits of these budgets; -1 is unlimited.", "budget"),
        _gauge("korvet_memory_storage_bytes", "Bytes that the store holds in the broker's memory."),
    ),
    "Broker": (
        _gauge("korvet_build_info", "1, with the version of korvet.", "version", merge=Merge.MAX),
        _gauge("korvet_ready", "1 if the broker serves and its store answers.", merge=Merge.MAX),
        _gauge("korvet_processes", "Processes that serve."),
        _histogram(
            "korvet_event_loop_delay_seconds",
            "By how much a task that sleeps 100 ms is resumed too late; every request waits as long.",
        ),
        _counter("process_cpu_seconds_total", "Processor time, user and system, of the serving processes."),
        _gauge("process_resident_memory_bytes", "Resident memory of the serving processes."),
        _gauge("process_open_fds", "Open file descriptors of the serving processes."),
        _gauge("process_max_fds", "Limit of open file descriptors of a process.", merge=Merge.MIN),
        _gauge(
            "process_start_time_seconds", "Start of the oldest serving process, Unix time.", merge=Merge.MIN
        ),
        _gauge(
            "korvet_scrape_seconds", "Time in which the values of this scrape were read.", merge=Merge.MAX
        ),
        _counter(
            "korvet_scrape_errors_total",
            "Values that could not be read: `groups`, `topics` or `store`; their metrics are missing then.",
            "part",
        ),
    ),
}

METRICS: dict[str, Metric] = {metric.name: metric for metrics in GROUPS.values() for metric in metrics}


def sample_names(metrics: Iterable[Metric] = METRICS.values()) -> set[str]:
    """Return the names of all time series, as queries use them."""
    names = set()
    for metric in metrics:
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{metric.name}{suffix}" for suffix in ("_bucket", "_count", "_sum")}
        else:
            names.add(metric.name)
    return names
