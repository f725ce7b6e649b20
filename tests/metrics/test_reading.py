"""Figures of a broker from the text of its metrics, and the lines that state them."""

from __future__ import annotations

import pytest

from korvet.metrics.definitions import METRICS
from korvet.metrics.reading import (
    REDIS,
    SECTIONS,
    Fact,
    Figures,
    FiguresUnavailable,
    parse_figures,
    rate,
    stated,
    value_text,
)


def reading(taken_s: float, **samples: float) -> Figures:
    return Figures(taken_s, {name: {(): value} for name, value in samples.items()})


def test_metrics_are_summed_by_label() -> None:
    found = parse_figures(
        'korvet_topic_received_records_total{topic="t"} 5\nkorvet_topic_received_records_total{topic="u"} 1\n'
        'korvet_requests_total{api="Fetch",version="11"} 2\nkorvet_requests_total{api="Fetch",version="12"} 3\n'
    )

    assert {"t": 5.0, "u": 1.0} == found.by("korvet_topic_received_records_total", "topic")
    assert {"Fetch": 5.0} == found.by("korvet_requests_total", "api")
    assert (5.0, None) == (found.total("korvet_requests_total"), found.total("korvet_other"))


def test_text_that_is_not_of_prometheus_is_refused() -> None:
    with pytest.raises(FiguresUnavailable, match="not in Prometheus' text format"):
        parse_figures("<html>{{{")


def test_rate_is_the_growth_between_two_readings() -> None:
    assert 5.0 == rate("n", reading(3.0, n=30), reading(1.0, n=20))


def test_rate_of_a_broker_that_was_started_again_is_not_negative() -> None:
    assert 0.0 == rate("n", reading(3.0, n=1), reading(1.0, n=20))


def test_rate_needs_two_readings() -> None:
    assert None is rate("n", reading(3.0, n=1), None)


def test_facts_whose_metrics_are_missing_are_left_out() -> None:
    found = reading(1.0, korvet_redis_connected=2, korvet_redis_memory_used_bytes=1_500_000)

    assert [("connected processes", "2"), ("memory used", "1.5 MB")] == stated(REDIS, found, None)


def test_fact_with_a_label_has_a_line_for_each_value() -> None:
    fact = Fact("behind by", "lag", "B", label="replica")
    found = Figures(1.0, {"lag": {(("replica", "b:1"),): 3, (("replica", "a:1"),): 0}})

    assert [("behind by, a:1", "0 B"), ("behind by, b:1", "3 B")] == stated([fact], found, None)


def test_quantile_is_of_the_time_between_two_readings() -> None:
    fact = Fact("delay", "d", "s", quantile=0.5)

    def histogram(taken_s: float, *counts: int) -> Figures:
        bounds = ("0.001", "0.01", "+Inf")
        return Figures(
            taken_s, {"d_bucket": {(("le", le),): n for le, n in zip(bounds, counts, strict=True)}}
        )

    earlier = histogram(1.0, 100, 100, 100)
    assert [("delay", "at most 1 ms")] == stated([fact], earlier, None)
    assert [("delay", "at most 10 ms")] == stated([fact], histogram(2.0, 100, 110, 110), earlier)
    assert [("delay", "over 10 ms")] == stated([fact], histogram(2.0, 100, 100, 110), earlier)
    assert [("delay", "–")] == stated([fact], histogram(1.0, 0, 0, 0), None)


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (12_345_678, "B", "12.3 MB"),
        (0, "s", "0 s"),
        (0.00025, "s", "250 µs"),
        (0.0125, "s", "12.5 ms"),
        (75.123, "s", "75.12 s"),
        (1_700_000_000, "time", "2023-11-14 22:13:20Z"),
        (0, "time", "–"),
        (0, "limit", "none"),
        (2e9, "limit", "2 GB"),
        (1, "yes", "yes"),
        (0, "yes", "no"),
        (1234, "", "1,234"),
        (0.25, "", "0.2"),
    ],
)
def test_value_has_its_unit(value: float, unit: str, text: str) -> None:
    assert text == value_text(value, unit)


def test_every_fact_names_a_metric_that_exists() -> None:
    named = {fact.metric for facts in SECTIONS.values() for fact in facts}

    assert set() == named - set(METRICS)
