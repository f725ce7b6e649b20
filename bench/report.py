"""Results: print every round, then one table, and save everything to a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Self

from attrs import define, evolve, field, frozen


@frozen
class Case:
    """A measurement that several systems have in common."""

    name: str
    unit: str
    higher_is_better: bool = True

    def processor_time(self) -> Case:
        """Return the case of the processor time that broker and server use per million records (requests)."""
        return Case(f"processor time {self.name}", "s/million", higher_is_better=False)


@frozen
class Goal:
    """The value that a system should reach in a case, as a minimum, or as a maximum if lower is better.

    `value` is a ratio to the result of the system `of` in the same run, or absolute if `of` is None.
    """

    value: float
    of: str | None = None


@frozen
class Verdict:
    """A goal with the value that was reached."""

    goal: Goal
    sign: str
    value: float
    is_reached: bool

    @property
    def of(self) -> str:
        return f" of {self.goal.of}" if self.goal.of else ""


@define
class Results:
    """Figures by case and system, in the order of measurement."""

    about: Mapping[str, str]
    goals: Mapping[tuple[Case, str], Sequence[Goal]]
    #: By system, the system that is its floor.
    floors: Mapping[str, str] = field(factory=dict)
    #: The system that all others are compared with.
    peer: str = ""
    rounds: dict[tuple[Case, str], list[float]] = field(factory=dict)
    warms_up: bool = False

    def add(self, case: Case, system: str, value: float) -> None:
        """Add one round's figure, and print it."""
        figures = self.rounds.setdefault((case, system), [])
        figures.append(value)
        when = "warm-up" if self.warms_up else f"round {len(figures)}"
        print(f"{when:<8} {case.name:<46} {system:<24} {figure(value):>12} {case.unit}", flush=True)

    def quietly(self) -> Self:
        """Return a copy without figures, for warm-up rounds, which do not count."""
        return evolve(self, rounds={}, warms_up=True)

    # --- Reading ------------------------------------------------------------------------------------------

    @property
    def cases(self) -> list[Case]:
        """The cases in the order of measurement, without the processor times that belong to other cases."""
        found = dict.fromkeys(case for case, _ in self.rounds)
        belonging = {case.processor_time() for case in found}
        return [case for case in found if case not in belonging]

    def systems(self, case: Case) -> list[str]:
        """Return the systems that have figures of a case."""
        return [system for measured, system in self.rounds if measured == case]

    def median(self, case: Case, system: str | None) -> float | None:
        """Return the median, None if there are no figures."""
        figures = self.rounds.get((case, system)) if system is not None else None
        return median(figures) if figures else None

    def ratio(self, case: Case, system: str, other: str | None) -> float | None:
        """Return the ratio of the medians, None if one is missing."""
        # Rounds alternate between systems, so both were measured under the same conditions.
        mine, others = self.median(case, system), self.median(case, other)
        return mine / others if mine is not None and others and other != system else None

    def verdicts(self, case: Case, system: str) -> list[Verdict]:
        """Return a verdict for each goal whose system, and reference, were measured."""
        found = []
        for goal in self.goals.get((case, system), ()):
            value = self.ratio(case, system, goal.of) if goal.of else self.median(case, system)
            if value is not None:
                is_reached = value >= goal.value if case.higher_is_better else value <= goal.value
                found.append(Verdict(goal, "≥" if case.higher_is_better else "≤", value, is_reached))
        return found

    # --- Showing ------------------------------------------------------------------------------------------

    def table(self) -> str:
        """Return a table of medians, processor times, ratios to the peer and the floors, and goals."""
        header = (
            *("case", "system", "median", "min", "max", "unit", "CPU s/M"),
            *(f"of {self.peer or 'peer'}", "of floor", "goal", "reached"),
        )
        rows: list[tuple[str, ...]] = [header]
        for case in self.cases:
            for number, system in enumerate(self.systems(case)):
                rows.append(("" if number else case.name, *self._row(case, system)))
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines = [
            "  ".join(_aligned(cell, widths[column], column) for column, cell in enumerate(row)).rstrip()
            for row in rows
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(lines)

    def _row(self, case: Case, system: str) -> tuple[str, ...]:
        figures = self.rounds[case, system]
        verdicts = self.verdicts(case, system)
        missed = [f"{figure(each.value)}{each.of}" for each in verdicts if not each.is_reached]
        return (
            system,
            *(figure(value) for value in (median(figures), min(figures), max(figures))),
            case.unit,
            _figure_or_empty(self.median(case.processor_time(), system)),
            "" if system in self.floors.values() else _figure_or_empty(self.ratio(case, system, self.peer)),
            _figure_or_empty(self.ratio(case, system, self.floors.get(system))),
            ", ".join(f"{each.sign} {figure(each.goal.value)}{each.of}" for each in verdicts),
            (f"no: {', '.join(missed)}" if missed else "yes") if verdicts else "",
        )

    # --- Keeping ------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write every round as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        measured = [
            {
                "case": case.name,
                "unit": case.unit,
                "higher_is_better": case.higher_is_better,
                "system": system,
                "rounds": figures,
                "median": median(figures),
            }
            for (case, system), figures in self.rounds.items()
        ]
        path.write_text(json.dumps({"about": dict(self.about), "measured": measured}, indent=1) + "\n")

    def load(self, path: Path) -> Self:
        """Read what `save` wrote. Goals, floors and peer are those of this object."""
        saved = json.loads(path.read_text())
        rounds = {
            (Case(each["case"], each["unit"], each["higher_is_better"]), each["system"]): each["rounds"]
            for each in saved["measured"]
        }
        return evolve(self, about=saved["about"], rounds=rounds)


def figure(value: float) -> str:
    """Format a value with its significant digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.01 else f"{value:.1g}"


def _figure_or_empty(value: float | None) -> str:
    return "" if value is None else figure(value)


def _aligned(cell: str, width: int, column: int) -> str:
    """Align figures to the right, words to the left."""
    return cell.rjust(width) if column in (2, 3, 4, 6, 7, 8) else cell.ljust(width)
