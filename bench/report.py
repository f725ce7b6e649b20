"""What was measured: every round as it comes, one table at the end, everything in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Self

from attrs import define, evolve, field, frozen


@frozen
class Case:
    """One thing that is measured of several systems."""

    name: str
    unit: str
    higher_is_better: bool = True

    def processor_time(self) -> Case:
        """What a broker, and the server it has, use for a million records (requests) of this case."""
        return Case(f"processor time {self.name}", "s/million", higher_is_better=False)


@frozen
class Goal:
    """What a system is to reach in a case: at least, or (where lower is better) at most.

    A ratio to what the system `of` reaches in the same run, or an absolute figure.
    """

    value: float
    of: str | None = None


@frozen
class Verdict:
    """What was reached of a goal."""

    goal: Goal
    sign: str
    value: float
    is_reached: bool

    @property
    def of(self) -> str:
        return f" of {self.goal.of}" if self.goal.of else ""


@define
class Results:
    """Figures by case and system, in the order in which they first came."""

    about: Mapping[str, str]
    goals: Mapping[tuple[Case, str], Sequence[Goal]]
    #: Whom a system's figures are compared with: the one that stands for its floor.
    floors: Mapping[str, str] = field(factory=dict)
    #: Whom all others are compared with.
    peer: str = ""
    rounds: dict[tuple[Case, str], list[float]] = field(factory=dict)
    warms_up: bool = False

    def add(self, case: Case, system: str, value: float) -> None:
        """Keep one round's figure, and print it."""
        figures = self.rounds.setdefault((case, system), [])
        figures.append(value)
        when = "warm-up" if self.warms_up else f"round {len(figures)}"
        print(f"{when:<8} {case.name:<46} {system:<24} {figure(value):>12} {case.unit}", flush=True)

    def quietly(self) -> Self:
        """The same without any figures: for rounds that warm up, and do not count."""
        return evolve(self, rounds={}, warms_up=True)

    # --- Reading ------------------------------------------------------------------------------------------

    @property
    def cases(self) -> list[Case]:
        """In the order in which they first came, without the processor times that belong to others."""
        found = dict.fromkeys(case for case, _ in self.rounds)
        belonging = {case.processor_time() for case in found}
        return [case for case in found if case not in belonging]

    def systems(self, case: Case) -> list[str]:
        """Those that a case was measured of."""
        return [system for measured, system in self.rounds if measured == case]

    def median(self, case: Case, system: str | None) -> float | None:
        """None where it was not measured."""
        figures = self.rounds.get((case, system)) if system is not None else None
        return median(figures) if figures else None

    def ratio(self, case: Case, system: str, other: str | None) -> float | None:
        """Of the medians: rounds were taken in turns, so both saw the same machine. None without both of them."""
        mine, others = self.median(case, system), self.median(case, other)
        return mine / others if mine is not None and others and other != system else None

    def verdicts(self, case: Case, system: str) -> list[Verdict]:
        """Each goal, as far as what it is compared with was measured."""
        found = []
        for goal in self.goals.get((case, system), ()):
            value = self.ratio(case, system, goal.of) if goal.of else self.median(case, system)
            if value is not None:
                is_reached = value >= goal.value if case.higher_is_better else value <= goal.value
                found.append(Verdict(goal, "≥" if case.higher_is_better else "≤", value, is_reached))
        return found

    # --- Showing ------------------------------------------------------------------------------------------

    def table(self) -> str:
        """Medians, what the processor was used for, ratios to the peer and the floors, and the goals."""
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
            _or_nothing(self.median(case.processor_time(), system)),
            "" if system in self.floors.values() else _or_nothing(self.ratio(case, system, self.peer)),
            _or_nothing(self.ratio(case, system, self.floors.get(system))),
            ", ".join(f"{each.sign} {figure(each.goal.value)}{each.of}" for each in verdicts),
            (f"no: {', '.join(missed)}" if missed else "yes") if verdicts else "",
        )

    # --- Keeping ------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write everything, every round of it, as JSON."""
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
        """What `save` wrote, with these goals, floors and peer."""
        saved = json.loads(path.read_text())
        rounds = {
            (Case(each["case"], each["unit"], each["higher_is_better"]), each["system"]): each["rounds"]
            for each in saved["measured"]
        }
        return evolve(self, about=saved["about"], rounds=rounds)


def figure(value: float) -> str:
    """With as many digits as mean something."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.01 else f"{value:.1g}"


def _or_nothing(value: float | None) -> str:
    return "" if value is None else figure(value)


def _aligned(cell: str, width: int, column: int) -> str:
    """Figures to the right, words to the left."""
    return cell.rjust(width) if column in (2, 3, 4, 6, 7, 8) else cell.ljust(width)
