from __future__ import annotations

from pathlib import Path

import pytest

from bench.report import Case, Goal, Results, figure

IN = Case("in", "records/s")
SLOW = Case("start", "s", higher_is_better=False)


def results(**goals: tuple[Goal, ...]) -> Results:
    """Return results: ours at 300 and 3 s, the peer at 200 and 2 s, the floor at 600."""
    measured = Results(
        {"date": "today"},
        {(IN, "ours"): goals.get("ours_in", ()), (SLOW, "ours"): goals.get("ours_slow", ())},
        floors={"ours": "floor"},
        peer="peer",
    )
    for case, system, figures in (
        (IN, "ours", (100.0, 300.0, 400.0)),
        (IN, "peer", (200.0, 200.0, 900.0)),
        (IN, "floor", (600.0, 600.0, 600.0)),
        (SLOW, "ours", (3.0,)),
        (SLOW, "peer", (2.0,)),
        (IN.processor_time(), "ours", (0.5,)),
    ):
        for value in figures:
            measured.add(case, system, value)
    return measured


def test_ratios_are_of_the_medians() -> None:
    measured = results()

    assert 1.5 == measured.ratio(IN, "ours", "peer")
    assert 0.5 == measured.ratio(IN, "ours", "floor")
    assert None is measured.ratio(IN, "ours", "nobody")


@pytest.mark.parametrize(
    "goal, reached",
    [
        (Goal(1.5, "peer"), [(1.5, True)]),
        (Goal(1.6, "peer"), [(1.5, False)]),
        (Goal(300.0), [(300.0, True)]),
        (Goal(301.0), [(300.0, False)]),
        (Goal(9.0, "nobody"), []),
    ],
)
def test_rate_reaches_a_goal_at_or_below_it(goal: Goal, reached: list[tuple[float, bool]]) -> None:
    verdicts = results(ours_in=(goal,)).verdicts(IN, "ours")

    assert reached == [(each.value, each.is_reached) for each in verdicts]


@pytest.mark.parametrize(
    "goal, reached",
    [
        (Goal(1.5, "peer"), [(1.5, True)]),
        (Goal(1.4, "peer"), [(1.5, False)]),
        (Goal(2.9), [(3.0, False)]),
    ],
)
def test_time_reaches_a_goal_at_or_above_it(goal: Goal, reached: list[tuple[float, bool]]) -> None:
    verdicts = results(ours_slow=(goal,)).verdicts(SLOW, "ours")

    assert reached == [(each.value, each.is_reached) for each in verdicts]


def test_table_marks_missed_goals() -> None:
    table = results(ours_in=(Goal(2.0, "peer"), Goal(0.5, "floor"))).table().splitlines()

    assert "of peer" in table[0]
    assert [
        *("in", "ours", "300", "100", "400", "records/s", "0.5", "1.5", "0.5"),
        *("≥", "2", "of", "peer,", "≥", "0.5", "of", "floor", "no:", "1.5", "of", "peer"),
    ] == table[2].split()
    assert not any("processor" in line for line in table)


def test_saved_results_are_loaded(tmp_path: Path) -> None:
    measured = results(ours_in=(Goal(2.0, "peer"),))
    measured.save(tmp_path / "kept.json")
    loaded = Results({}, measured.goals, measured.floors, measured.peer).load(tmp_path / "kept.json")

    assert measured == loaded


@pytest.mark.parametrize(
    "value, shown", [(1234567.0, "1,234,567"), (12.345, "12.3"), (0.5, "0.5"), (0.00123, "0.001")]
)
def test_figures_are_rounded_to_significant_digits(value: float, shown: str) -> None:
    assert shown == figure(value)
