"""The metrics of `korvet lake run`. docs/pipeline.md lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from korvet.metrics.definitions import Kind, Metric
from korvet.metrics.samples import Labels, Samples, Value
from korvet.pipeline.run.schedule import State
from korvet.pipeline.run.status import TableStatus

LAG_SECONDS = "korvet_lake_lag_seconds"
LAG_RECORDS = "korvet_lake_lag_records"
RECORDS_TOTAL = "korvet_lake_records_total"
COMMIT_SECONDS = "korvet_lake_commit_seconds"
CONFLICTS_TOTAL = "korvet_lake_conflicts_total"
FILES = "korvet_lake_files"
TYPED_FILES = "korvet_lake_typed_files"
MIRROR_LAG_SECONDS = "korvet_lake_mirror_lag_seconds"
TABLE_STATE = "korvet_lake_table_state"

LAKE_METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(LAG_SECONDS, Kind.GAUGE, ("topic",), "Age of the oldest record that no commit has, at most."),
        Metric(LAG_RECORDS, Kind.GAUGE, ("topic",), "Records that no commit has, about."),
        Metric(
            RECORDS_TOTAL,
            Kind.COUNTER,
            ("topic", "result"),
            "Records that this run committed: `archived`, `typed` (decoded), `bad` (not decoded).",
        ),
        Metric(COMMIT_SECONDS, Kind.GAUGE, ("topic",), "Time that the last commit took."),
        Metric(CONFLICTS_TOTAL, Kind.COUNTER, ("topic",), "Commits that another writer's commit preceded."),
        Metric(FILES, Kind.GAUGE, ("topic", "size"), "Files of the archive, by size class."),
        Metric(TYPED_FILES, Kind.GAUGE, ("topic", "size"), "Files of the typed table, by size class."),
        Metric(
            MIRROR_LAG_SECONDS,
            Kind.GAUGE,
            ("topic",),
            "Time for which the Iceberg table has lacked a commit of the archive.",
        ),
        Metric(TABLE_STATE, Kind.GAUGE, ("topic", "state"), "1 for the state that the table is in, else 0."),
    )
}


def lake_samples(statuses: Iterable[TableStatus]) -> Samples:
    """Return the values of all metrics. Unknown ones are left out."""
    samples: Samples = {name: {} for name in LAKE_METRICS}

    def add(name: str, value: Value | None, *labels: str) -> None:
        if value is not None:
            values: dict[Labels, Value] = samples[name]
            values[labels] = value

    for each in statuses:
        add(LAG_SECONDS, each.lag_s, each.topic)
        add(LAG_RECORDS, each.lag_records, each.topic)
        add(RECORDS_TOTAL, each.records, each.topic, "archived")
        add(RECORDS_TOTAL, each.decoded, each.topic, "typed")
        add(RECORDS_TOTAL, each.bad, each.topic, "bad")
        add(COMMIT_SECONDS, each.commit_s, each.topic)
        add(CONFLICTS_TOTAL, each.conflicts, each.topic)
        for size, count in each.files.items():
            add(FILES, count, each.topic, size)
        for size in each.typed[0].files if each.typed else ():
            add(TYPED_FILES, sum(typed.files[size] for typed in each.typed), each.topic, size)
        add(MIRROR_LAG_SECONDS, each.mirror_lag_s, each.topic)
        for state in State:
            add(TABLE_STATE, float(state is each.state), each.topic, str(state))
    return samples
