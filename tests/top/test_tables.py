"""Rows, rates and lags of `korvet top`, from made-up samples."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from attrs import evolve

from korvet.client.lake_tables import ShownTable
from korvet.client.model import TopicPartition
from korvet.client.open_transactions import ShownTransaction
from korvet.metrics.reading import Figures
from korvet.protocol.text import duration_text
from korvet.top.sampling import GroupState, Lag, PartitionState, Sample, TopicState, lag_of
from korvet.top.tables import Tables, arranged, row

BITS = 10


def sample(
    taken_s: float,
    topics: Mapping[str, TopicState],
    groups: Mapping[str, GroupState] | None = None,
    figures: Figures | None = None,
) -> Sample:
    return Sample(taken_s, "c", {1: "a:1", 2: "b:2"}, 2, topics, groups or {}, figures)


def topic(*ends: int, start: int = 0, bits: int | None = None) -> TopicState:
    return TopicState({number: PartitionState(start, end, 1) for number, end in enumerate(ends)}, bits)


def figures(taken_s: float, received: float, sent: float, requests: float = 0) -> Figures:
    topic = (("topic", "t"),)
    return Figures(
        taken_s,
        {
            "korvet_topic_received_records_total": {topic: received},
            "korvet_topic_sent_records_total": {topic: sent},
            "korvet_requests_total": {(("api", "Produce"),): requests},
            "korvet_connections": {
                (("listener", "PLAINTEXT"), ("software", "librdkafka"), ("software_version", "2.0")): 2,
                (("listener", "PLAINTEXT"), ("software", ""), ("software_version", "")): 1,
            },
            "korvet_redis_connected": {(): 1},
        },
    )


def test_rates_are_differences_of_offsets_per_second() -> None:
    tables = Tables(sample(12.0, {"t": topic(100, 50, start=10)}), sample(10.0, {"t": topic(60, 50)}))

    assert [("t", "2", "130", "20", "-", "records")] == [each.cells for each in tables.topics()]
    assert ["20", "0"] == [each.cells[-1] for each in tables.partitions("t")]


def test_first_sample_has_no_rates() -> None:
    assert "-" == Tables(sample(1.0, {"t": topic(5)})).topics()[0].cells[3]


def test_offsets_that_follow_the_clock_are_no_records() -> None:
    now = sample(2.0, {"t": topic(1 << 50, bits=BITS)})

    assert [("t", "1", "-", "-", "-", "time")] == [each.cells for each in Tables(now, now).topics()]


def test_metrics_have_rates_of_every_topic() -> None:
    topics = {"t": topic(1 << 50, bits=BITS)}
    tables = Tables(
        sample(3.0, topics, None, figures(3.0, 300, 90, 10)),
        sample(1.0, topics, None, figures(1.0, 100, 30)),
    )

    assert ("100", "30") == tables.topics()[0].cells[3:5]
    assert (5.0, 3.0, 100.0) == (tables.requests(), tables.connections(), tables.total_in())


def test_restart_of_the_broker_gives_no_negative_rate() -> None:
    topics = {"t": topic(5)}
    tables = Tables(
        sample(3.0, topics, None, figures(3.0, 1, 1)), sample(1.0, topics, None, figures(1.0, 100, 30))
    )

    assert ("0", "0") == tables.topics()[0].cells[3:5]


def test_lag_is_in_records_or_in_time() -> None:
    assert Lag(3, 10, 7, None) == lag_of(3, PartitionState(0, 10, 1), None)
    assert Lag(12, 10, 0, None) == lag_of(12, PartitionState(0, 10, 1), None)
    behind = lag_of(1_000 << BITS, PartitionState(0, 61_001 << BITS, 1), BITS)
    assert (None, 60_001) == (behind.records, behind.ms)


def test_group_shows_its_total_and_its_slowest_partition() -> None:
    lags = {
        TopicPartition("t", 0): Lag(0, 5, 5, None),
        TopicPartition("t", 1): Lag(0, 1500, 1500, None),
        TopicPartition("u", 0): Lag(0, 9, None, 1200),
    }
    groups = {"g": GroupState("Stable", 2, lags), "h": GroupState("Empty", 0, {}), "i": GroupState("Dead")}

    assert [
        ("g", "Stable", "2", "3", "1,505 and 1 s", "t-1 1,500"),
        ("h", "Empty", "0", "0", "-", "-"),
        ("i", "Dead", "-", "-", "-", "-"),
    ] == [each.cells for each in Tables(sample(1.0, {}, groups)).groups()]


def test_brokers_show_how_many_partitions_they_lead() -> None:
    tables = Tables(sample(1.0, {"t": topic(1, 2, 3)}))

    assert [("1", "a:1", "3", ""), ("2", "b:2", "0", "controller")] == [
        each.cells for each in tables.brokers()
    ]


def test_rows_are_sorted_and_selected() -> None:
    rows = [row(name, name, count) for name, count in (("b", 2), ("a", 10), ("orders", None), ("c", 2))]

    def keys(**how: object) -> list[str]:
        return [each.key for each in arranged(rows, **{"column": 0, "is_descending": False, **how})]  # type: ignore[arg-type]

    assert ["a", "b", "c", "orders"] == keys()
    assert ["a", "b", "c", "orders"] == keys(column=1, is_descending=True)
    assert ["orders", "b", "c", "a"] == keys(column=1)
    assert ["orders"] == keys(words="ORD")


@pytest.mark.parametrize(
    "ms, text",
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (90_000, "2 min"),
        (3_600_000, "1 h"),
        (2 * 86_400_000, "2 d"),
    ],
)
def test_duration_has_the_unit_of_its_size(ms: int, text: str) -> None:
    assert text == duration_text(ms)


def test_metrics_show_connections_and_the_inside_of_the_broker() -> None:
    now = sample(3.0, {}, None, figures(3.0, 300, 90, 10))
    tables = Tables(now, sample(1.0, {}, None, figures(1.0, 100, 30)))

    assert {("librdkafka", "2.0", "PLAINTEXT", "2"), ("unknown", "unknown", "PLAINTEXT", "1")} == {
        each.cells for each in tables.connection_rows()
    }
    rows = [each.cells for each in tables.inside()]
    assert ("Broker", "requests", "5/s") in rows
    assert ("Redis", "connected processes", "1") in rows


def test_without_metrics_the_inside_is_empty() -> None:
    tables = Tables(sample(1.0, {}))

    assert ([], []) == (tables.connection_rows(), tables.inside())


def test_tables_of_the_lake_show_their_lag_and_their_error() -> None:
    current = ShownTable(
        "t", "archive", "/lake/t", "current", None, 1_790_000_000_000, 7, 12.4, 3, 2_500, 2.0
    )
    unknown = ShownTable("u", "typed", "/typed/u", "failed", "bad row", None, None, None, None, None, 90.0)
    tables = Tables(evolve(sample(1.0, {}), lake=(current, unknown)))

    assert [
        (
            "t",
            "archive",
            "current",
            "2026-09-21T14:13:20.000Z",
            "7",
            "12",
            "3",
            "2.5 kB",
            "2 s ago",
            "/lake/t",
            "",
        ),
        ("u", "typed", "failed", "-", "-", "-", "-", "-", "2 min ago", "/typed/u", "bad row"),
    ] == [each.cells for each in tables.lake()]


def test_transactions_show_what_waits_behind_them() -> None:
    transactions = (
        ShownTransaction(TopicPartition("t", 0), 90, 7, 5_000),
        ShownTransaction(TopicPartition("u", 1), 1_000 << BITS, 8, 120_000, "payer", "Ongoing"),
    )
    topics = {"t": topic(100), "u": topic(0, 61_000 << BITS, bits=BITS)}
    now = evolve(sample(1.0, topics), transactions=transactions)

    assert [
        ("t-0", "open", "10", "5 s", "-", "90", "7"),
        ("u-1", "Ongoing", "1 min", "2 min", "payer", str(1_000 << BITS), "8"),
    ] == [each.cells for each in Tables(now).transactions()]
