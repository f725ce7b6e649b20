"""Rates and token buckets, with values that Kafka's formulas give."""

from __future__ import annotations

import pytest

from korvet.broker.rates import Meter, Rate, TokenBucket, Window

WINDOW = Window(11, 1.0)


def recorded(meter: Meter, *amounts: tuple[float, float], limit: float = 100.0) -> Meter:
    """Return the meter after amounts at times."""
    for now, amount in amounts:
        meter.record(amount, limit, now)
    return meter


@pytest.mark.parametrize(
    "amounts, now, expected",
    [
        ([], 0.0, 0.0),
        ([(0.0, 1000)], 0.0, 0.0),
        ([(0.0, 1500)], 0.0, 5.0),
        # In the first seconds, the rate is measured over 10 s and the incomplete sample.
        ([(0.0, 1500)], 0.5, 4.5),
        ([(0.0, 750), (3.25, 750)], 3.25, 4.75),
        # After 10 s, over the time since the first sample.
        ([(0.0, 1500)], 10.5, 4.5),
        ([(float(second), 100) for second in range(30)], 29.0, 1.0),
        ([(float(second), 200) for second in range(30)], 29.0, 12.0),
        ([(0.0, 1500)], 11.0, 0.0),
    ],
)
def test_rate_is_exceeded_for_as_long_as_in_kafka(
    amounts: list[tuple[float, float]], now: float, expected: float
) -> None:
    assert expected == pytest.approx(recorded(Rate(WINDOW), *amounts).excess_s(100.0, now))


def test_reverted_amount_does_not_count() -> None:
    rate = recorded(Rate(WINDOW), (0.0, 900), (1.0, 5000), (1.0, -5000))

    assert 0.0 == rate.excess_s(100.0, 1.0)


def test_rate_keeps_few_samples() -> None:
    rate = Rate(WINDOW)
    for number in range(1000):
        rate.record(1, 100, number * 0.4)

    assert len(rate._samples) <= 12


def test_rate_of_a_single_sample_has_a_window() -> None:
    assert 14.999 == recorded(Rate(Window(1, 1.0)), (0.0, 1500)).excess_s(100.0, 0.0)


@pytest.mark.parametrize(
    "amounts, now, expected",
    [
        ([], 0.0, 0.0),
        ([(0.0, 1100)], 0.0, 0.0),
        ([(0.0, 1200)], 0.0, 1.0),
        ([(0.0, 1200)], 0.75, 0.25),
        ([(0.0, 1200), (0.0, 100)], 1.0, 1.0),
        ([(0.0, 1100), (100.0, 1200)], 100.0, 1.0),
    ],
)
def test_tokens_are_refilled_at_the_limit(
    amounts: list[tuple[float, float]], now: float, expected: float
) -> None:
    assert expected == pytest.approx(recorded(TokenBucket(WINDOW), *amounts).excess_s(100.0, now))


@pytest.mark.parametrize("kind, idle_s", [(Rate, 11.0), (TokenBucket, 12.0)])
def test_meter_is_idle_once_it_equals_a_new_one(kind: type[Rate | TokenBucket], idle_s: float) -> None:
    meter = recorded(kind(WINDOW), (0.0, 1200))

    assert [False, True] == [meter.is_idle(now) for now in (idle_s - 0.1, idle_s)]
    assert kind(WINDOW).is_idle(0.0)
