"""Parsing points in time on the command line."""

from __future__ import annotations

import click
import pytest

from korvet.cli.times import format_time, interval_s, parse_duration, parse_named_time, parse_time


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0", 0),
        ("1767225600000", 1767225600000),
        ("2026-01-01", 1767225600000),
        ("2026-01-01T00:00:00", 1767225600000),
        ("2026-01-01T00:00:00.25Z", 1767225600250),
        ("2026-01-01T01:00:00+01:00", 1767225600000),
        ("1969-12-31T23:59:59Z", -1000),
    ],
)
def test_time_is_iso_or_milliseconds_and_utc_without_a_zone(text: str, expected: int) -> None:
    assert expected == parse_time(text)


@pytest.mark.parametrize("text", ["", "soon", "12h", "2026-13-01", "-5"])
def test_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time. Accepted: 2026-03-01"):
        parse_time(text)


@pytest.mark.parametrize(
    "text, expected",
    [("latest", -1), ("earliest", -2), ("max-timestamp", -3), ("-2", -2), ("-6", -6), ("7", 7)],
)
def test_named_times_and_numbers_are_parsed(text: str, expected: int) -> None:
    assert expected == parse_named_time(text)


def test_unknown_named_time_is_refused_with_the_accepted_names() -> None:
    with pytest.raises(
        click.BadParameter,
        match="'newest' is neither latest, earliest, .*, nor the number of one of them, -1 to -6, nor a time",
    ):
        parse_named_time("newest")


@pytest.mark.parametrize(
    "timestamp, expected",
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1767225600250, "2026-01-01T00:00:00.250Z"),
        (-1, "-"),
        (2**62, str(2**62)),
    ],
)
def test_timestamp_is_printed_in_utc(timestamp: int, expected: str) -> None:
    assert expected == format_time(timestamp)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("PT1H30M", 5_400_000),
        ("P7D", 604_800_000),
        ("P1DT0.5S", 86_400_500),
        ("90s", 90_000),
        ("1d2h", 93_600_000),
        ("PT0S", 0),
        ("500ms", 500),
        ("1.5h", 5_400_000),
        ("90d", 7_776_000_000),
    ],
)
def test_duration_is_iso_or_short(text: str, expected: int) -> None:
    assert expected == parse_duration(text)


@pytest.mark.parametrize("text", ["", "P", "PT", "soon", "1w", "-1h", "1h30", "90"])
def test_invalid_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration. Accepted: PT1H30M"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text, expected", [("30", 30.0), ("0.5", 0.5), ("500ms", 0.5), ("5m", 300.0), (None, None)]
)
def test_interval_without_a_unit_is_in_seconds(text: str | None, expected: float | None) -> None:
    assert expected == interval_s(None, None, text)


def test_interval_is_above_zero() -> None:
    with pytest.raises(click.BadParameter, match="'0s' is not above 0"):
        interval_s(None, None, "0s")
