"""Every metric: its name, kind, labels and meaning. docs/metrics.md, the exposition and the tests derive from this.

Names and units follow Prometheus' conventions: seconds, bytes, `_total` for counters.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from attrs import frozen

from korvet.concurrency.histograms import SECONDS
from korvet.metrics import names


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
            names.REQUESTS_TOTAL,
            "Requests that were handled. `other` are versions of the API that are not served.",
            "api",
            "version",
        ),
        _counter(
            names.RESPONSE_ERRORS_TOTAL,
            "Error codes in responses, one for each partition or other resource with an error.",
            "api",
            "error",
        ),
        _counter(names.REQUEST_BYTES_TOTAL, "Bytes of requests.", "api"),
        _counter(names.RESPONSE_BYTES_TOTAL, "Bytes of responses.", "api"),
        _counter(
            names.REQUESTS_WITH_BYTES_LEFT_OVER_TOTAL,
            "Requests with bytes behind their last field, which the broker ignored.",
            "api",
        ),
        _histogram(
            names.REQUEST_PHASE_SECONDS,
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
        _counter(names.TOPIC_RECEIVED_RECORDS_TOTAL, "Records that clients appended.", "topic"),
        _counter(names.TOPIC_RECEIVED_BATCHES_TOTAL, "Record batches that clients appended.", "topic"),
        _counter(names.TOPIC_RECEIVED_BYTES_TOTAL, "Bytes of record batches that clients appended.", "topic"),
        _counter(names.TOPIC_SENT_RECORDS_TOTAL, "Records in responses to fetches.", "topic"),
        _counter(names.TOPIC_SENT_BATCHES_TOTAL, "Record batches in responses to fetches.", "topic"),
        _counter(names.TOPIC_SENT_BYTES_TOTAL, "Bytes of record batches in responses to fetches.", "topic"),
    ),
    "Connections": (
        _gauge(
            names.CONNECTIONS,
            "Open connections by the software of their clients, which clients send since Kafka 2.4.",
            "listener",
            "software",
            "software_version",
        ),
        _counter(names.CONNECTIONS_OPENED_TOTAL, "Connections that were accepted.", "listener"),
        _counter(
            names.CONNECTIONS_ABORTED_TOTAL,
            "Connections that the broker closed: `protocol` (malformed bytes), `refused` (a request that can only be"
            " answered so, such as a failed produce with acks=0), `overdue` (idle or too slow), `internal` (an error"
            " in korvet).",
            "reason",
        ),
    ),
    "Topics and groups": (
        _gauge(names.TOPICS, "Topics.", scope=_STORE),
        _gauge(names.PARTITIONS, "Partitions of all topics.", scope=_STORE),
        _gauge(names.GROUPS, "Groups by state, with Kafka's names.", "state", scope=_STORE, merge=Merge.SUM),
        _gauge(names.GROUP_MEMBERS, "Members of a group.", "group", scope=_STORE, merge=Merge.SUM),
        _gauge(
            names.GROUP_LAG_RECORDS,
            "Records behind a group's committed offsets, in all partitions of the topic. If offsets follow the clock"
            " (`offset.mapping=timestamp`), the records are counted, at most 10,000 of a partition.",
            "group",
            "topic",
            scope=_STORE,
            merge=Merge.SUM,
        ),
        _gauge(
            names.GROUP_LAG_SECONDS,
            "Time between the last record before a group's committed offset and the last record, in the partition"
            " where it is longest. Only for topics whose offsets follow the clock (`offset.mapping=timestamp`).",
            "group",
            "topic",
            scope=_STORE,
        ),
    ),
    "Fetch sessions": (
        _gauge(
            names.FETCH_SESSIONS,
            "Incremental fetch sessions (`NumIncrementalFetchSessions` in Kafka). At most"
            " `max.incremental.fetch.session.cache.slots`.",
        ),
        _gauge(
            names.FETCH_SESSION_PARTITIONS,
            "Partitions of all fetch sessions (`NumIncrementalFetchPartitionsCached` in Kafka).",
        ),
        _counter(
            names.FETCH_SESSION_EVICTIONS_TOTAL,
            "Fetch sessions that were evicted for others (`IncrementalFetchSessionEvictionsPerSec` in Kafka). Their"
            " clients send full requests, and begin others.",
        ),
    ),
    "Transactions": (
        _gauge(
            names.TRANSACTIONS_OPEN,
            "Open transactions. Each is counted by the process that has begun it.",
            scope=_STORE,
            merge=Merge.SUM,
        ),
        _gauge(
            names.TRANSACTIONS_OLDEST_SECONDS,
            "Age of the oldest open transaction. Consumers with `read_committed` wait for it.",
            scope=_STORE,
        ),
        _gauge(
            names.TRANSACTIONS_HANGING,
            "Transactions of partitions that seem to hang: nothing happened in them for longer than"
            " `transaction.max.timeout.ms`. One broker searches for them; others report 0.",
        ),
        _gauge(names.TRANSACTIONS_ENDING, "Transactions whose markers are being written."),
        _gauge(
            names.TRANSACTION_MARKERS_WAITING,
            "Markers that are not written yet, and groups whose offsets are not committed or dropped yet, of these"
            " transactions.",
        ),
        _counter(
            names.TRANSACTIONS_ENDED_TOTAL,
            "Transactions that are complete: their result is `commit` or `abort`.",
            "result",
        ),
        _counter(names.TRANSACTIONS_TIMED_OUT_TOTAL, "Transactions that were aborted after their timeout."),
        _histogram(
            names.TRANSACTION_END_SECONDS,
            "Time from the decision to commit or abort a transaction until all of its markers are written.",
        ),
    ),
    "Maintenance": (
        _counter(names.RETENTION_TRIMS_TOTAL, "Partitions that retention has trimmed, apart from appends."),
        _counter(names.RETENTION_ERRORS_TOTAL, "Partitions that retention could not trim."),
        _gauge(
            names.RETENTION_LAST_RUN_TIMESTAMP_SECONDS,
            "End of the last run of retention, Unix time. One broker on a store runs it.",
            merge=Merge.MAX,
        ),
        _counter(names.COMPACTIONS_TOTAL, "Compactions of partitions."),
        _counter(names.COMPACTION_ERRORS_TOTAL, "Compactions that failed."),
        _counter(names.COMPACTION_REMOVED_BYTES_TOTAL, "Bytes by which compactions have reduced logs."),
        _counter(names.COMPACTION_SECONDS_TOTAL, "Time of compactions."),
        _gauge(
            names.ARCHIVE_LAG_RECORDS,
            "Records of a tiered topic that are not archived. Only for topics whose offsets count records.",
            "topic",
            scope=_STORE,
        ),
        _gauge(
            names.ARCHIVE_LAG_SECONDS,
            "Time between the last archived record and the last record of a tiered topic, in the partition where it"
            " is longest. Only for topics whose offsets follow the clock.",
            "topic",
            scope=_STORE,
        ),
        _counter(names.REMOTE_REQUESTS_TOTAL, "Requests for archived records and offsets."),
        _counter(names.REMOTE_ERRORS_TOTAL, "Requests for archived records and offsets that failed."),
        _counter(names.REMOTE_READ_BYTES_TOTAL, "Bytes of archived records that were read."),
        _histogram(names.REMOTE_REQUEST_SECONDS, "Time of requests for archived records and offsets."),
    ),
    "Redis": (
        _gauge(names.REDIS_CONNECTED, "Processes that are connected to Redis."),
        _counter(names.REDIS_RECONNECTS_TOTAL, "Connections to Redis that were lost."),
        _counter(
            names.REDIS_COMMANDS_TOTAL, "Commands, or groups of commands in one write, that were answered."
        ),
        _histogram(
            names.REDIS_ROUND_TRIP_SECONDS,
            "Time from the write of a command until its reply, without waits.",
        ),
        _counter(names.REDIS_SCRIPT_CALLS_TOTAL, "Calls of Lua scripts, by all clients.", scope=_STORE),
        _counter(names.REDIS_SCRIPT_SECONDS_TOTAL, "Time in Lua scripts, of all clients.", scope=_STORE),
        _gauge(names.REDIS_MEMORY_USED_BYTES, "Memory that Redis uses (`used_memory`).", scope=_STORE),
        _gauge(
            names.REDIS_MEMORY_LIMIT_BYTES,
            "Limit of that memory (`maxmemory`); 0 is unlimited.",
            scope=_STORE,
        ),
        _counter(names.REDIS_EVICTED_KEYS_TOTAL, "Keys that Redis has evicted.", scope=_STORE),
        _gauge(names.REDIS_REPLICAS, "Connected replicas.", scope=_STORE),
        _gauge(
            names.REDIS_REPLICA_LAG_BYTES,
            "Bytes of the replication stream that a replica has not acknowledged.",
            "replica",
            scope=_STORE,
        ),
        _gauge(
            names.REDIS_PERSISTENCE_OK,
            "1 if the last write of the append-only file (`aof`) or snapshot (`rdb`) succeeded.",
            "kind",
            scope=_STORE,
            merge=Merge.MIN,
        ),
    ),
    "Memory": (
        _gauge(
            names.MEMORY_BUDGET_USED_BYTES,
            "Memory in use: `requests` (received and unanswered), `responses` (records that are read or sent),"
            " `decompressed` (decompressed records that are being stored).",
            "budget",
        ),
        _gauge(names.MEMORY_BUDGET_LIMIT_BYTES, "Limits of these budgets; -1 is unlimited.", "budget"),
        _gauge(names.MEMORY_STORAGE_BYTES, "Bytes that the store holds in the broker's memory."),
    ),
    "Broker": (
        _gauge(names.BUILD_INFO, "1, with the version of korvet.", "version", merge=Merge.MAX),
        _gauge(names.READY, "1 if the broker serves and its store answers.", merge=Merge.MAX),
        _gauge(names.PROCESSES, "Processes that serve."),
        _histogram(
            names.EVENT_LOOP_DELAY_SECONDS,
            "By how much a task that sleeps 100 ms is resumed too late; every request waits as long.",
        ),
        _counter(
            names.PROCESS_CPU_SECONDS_TOTAL, "Processor time, user and system, of the serving processes."
        ),
        _gauge(names.PROCESS_RESIDENT_MEMORY_BYTES, "Resident memory of the serving processes."),
        _gauge(names.PROCESS_OPEN_FDS, "Open file descriptors of the serving processes."),
        _gauge(names.PROCESS_MAX_FDS, "Limit of open file descriptors of a process.", merge=Merge.MIN),
        _gauge(
            names.PROCESS_START_TIME_SECONDS,
            "Start of the oldest serving process, Unix time.",
            merge=Merge.MIN,
        ),
        _gauge(names.SCRAPE_SECONDS, "Time in which the values of this scrape were read.", merge=Merge.MAX),
        _counter(
            names.SCRAPE_ERRORS_TOTAL,
            "Values that could not be read: `groups`, `topics`, `transactions` or `store`; their metrics are missing"
            " then.",
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
