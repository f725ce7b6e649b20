"""Counts of a connection to Redis, for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from attrs import define, field

from korvet.concurrency.histograms import new_histogram
from korvet.storage.redis.client.replies import Reply

# INFO of Redis 6 takes one section.
SECTIONS = (b"memory", b"stats", b"persistence", b"replication", b"commandstats")
SCRIPT_COMMANDS = ("evalsha", "eval", "evalsha_ro", "eval_ro", "fcall", "fcall_ro")

Values = dict[str, dict[tuple[str, ...], float]]


@define(eq=False)
class Statistics:
    """The counts of all connections of one storage."""

    round_trips: list[float] = field(factory=new_histogram)
    lost: int = 0  # connections


def server_values(replies: Iterable[Reply]) -> Values:
    """Return the values of metrics in the replies to INFO. A section that the Redis user may not read has none."""
    fields = dict(_fields(replies))
    values: Values = {}

    def add(metric: str, value: str | float | None, *labels: str) -> None:
        if value is not None:
            values.setdefault(f"korvet_redis_{metric}", {})[labels] = float(value)

    add("memory_used_bytes", fields.get("used_memory"))
    add("memory_limit_bytes", fields.get("maxmemory"))
    add("evicted_keys_total", fields.get("evicted_keys"))
    add("replicas", fields.get("connected_slaves"))
    for replica, lag_bytes in _replica_lags(fields):
        add("replica_lag_bytes", lag_bytes, replica)
    if fields.get("aof_enabled") == "1":
        add("persistence_ok", fields.get("aof_last_write_status") == "ok", "aof")
    if "rdb_last_bgsave_status" in fields:
        add("persistence_ok", fields["rdb_last_bgsave_status"] == "ok", "rdb")
    if "used_memory" in fields:  # the user may send INFO
        scripts = [_pairs(fields.get(f"cmdstat_{command}", "")) for command in SCRIPT_COMMANDS]
        add("script_calls_total", sum(float(stats.get("calls", 0)) for stats in scripts))
        add("script_seconds_total", sum(float(stats.get("usec", 0)) for stats in scripts) / 1e6)
    return values


def added(values: Iterable[Values]) -> Values:
    """Return the values of several servers as one: sums, but the worst of the states of persistence."""
    total: Values = {}
    for each in values:
        for metric, by_labels in each.items():
            combine = min if metric == "korvet_redis_persistence_ok" else sum_of
            known = total.setdefault(metric, {})
            for labels, value in by_labels.items():
                known[labels] = combine(known[labels], value) if labels in known else value
    return total


def sum_of(one: float, other: float) -> float:
    return one + other


def _fields(replies: Iterable[Reply]) -> Iterator[tuple[str, str]]:
    for reply in replies:
        if isinstance(reply, bytes):
            for line in reply.decode(errors="replace").splitlines():
                name, found, value = line.partition(":")
                if found:
                    yield name, value


def _replica_lags(fields: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    end = fields.get("master_repl_offset")
    number = 0
    while end is not None and (text := fields.get(f"slave{number}")) is not None:
        replica = _pairs(text)
        number += 1
        if "offset" in replica:
            name = f"{replica.get('ip', '')}:{replica.get('port', '')}"
            yield name, max(float(end) - float(replica["offset"]), 0)


def _pairs(text: str) -> dict[str, str]:
    """Return the pairs of a value such as calls=1,usec=2."""
    return {name: value for name, found, value in (each.partition("=") for each in text.split(",")) if found}
