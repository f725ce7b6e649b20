"""What was measured: every round as it comes, one table at the end, everything in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from attrs import define, field, frozen


@frozen
class Case:
    """One thing that is measured of several systems."""

    name: str
    unit: str
    higher_is_better: bool = True


@frozen
class Goal:
    """What a system is to reach in a case: at least, or (where lower is better) at most."""

    value: float


@define
class Results:
    """Figures by case and system, in the order in which they first came."""

    about: Mapping[str, str]
    goals: Mapping[tuple[Case, str], float]
    # What a figure is compared with, by case: the system that stands for the floor.
    floors: Mapping[Case, Mapping[str, str]]
    rounds: dict[tuple[Case, str], list[float]] = field(factory=dict)

    def add(self, case: Case, system: str, value: float) -> None:
        """Keep one round's figure, and print it."""
        figures = self.rounds.setdefault((case, system), [])
        figures.append(value)
        print(
            f"round {len(figures)}  {case.name:<42} {system:<24} {_figure(value):>12} {case.unit}", flush=True
        )

    def table(self) -> str:
        """Medians, ratios to the floors, and whether the goals were reached."""
        header = ("case", "system", "median", "min", "max", "unit", "of floor", "goal", "reached")
        rows = [header, *(self._row(case, system) for case, system in self._sorted())]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines = []
        last_case = ""
        for row in rows:
            shown = row if row[0] != last_case else ("", *row[1:])
            last_case = row[0]
            cells = (_aligned(cell, widths[column], column) for column, cell in enumerate(shown))
            lines.append("  ".join(cells).rstrip())
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        """Write everything, every round of it, as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        measured = [
            {
                "case": case.name,
                "unit": case.unit,
                "system": system,
                "rounds": figures,
                "median": median(figures),
            }
            for (case, system), figures in self.rounds.items()
        ]
        path.write_text(json.dumps({"about": dict(self.about), "measured": measured}, indent=1) + "\n")

    def _sorted(self) -> list[tuple[Case, str]]:
        """All systems of a case together."""
        cases = list(dict.fromkeys(case for case, _ in self.rounds))
        return sorted(self.rounds, key=lambda key: cases.index(key[0]))

    def _row(self, case: Case, system: str) -> tuple[str, ...]:
        figures = self.rounds[case, system]
        goal = self.goals.get((case, system))
        return (
            case.name,
            system,
            *(_figure(value) for value in (median(figures), min(figures), max(figures))),
            case.unit,
            self._of_floor(case, system),
            "" if goal is None else _figure(goal),
            "" if goal is None else self._verdict(case, median(figures), goal),
        )

    def _of_floor(self, case: Case, system: str) -> str:
        """Ratio of the medians: rounds were taken in turns, so both saw the same machine."""
        floor = self.floors.get(case, {}).get(system)
        figures = self.rounds.get((case, floor)) if floor is not None else None
        if not figures:
            return ""
        return f"{median(self.rounds[case, system]) / median(figures):.2f} of {floor}"

    @staticmethod
    def _verdict(case: Case, value: float, goal: float) -> str:
        reached = value >= goal if case.higher_is_better else value <= goal
        return "yes" if reached else f"no ({value / goal:.2f})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _aligned(cell: str, width: int, column: int) -> str:
    """Figures to the right, words to the left."""
    return cell.rjust(width) if column in (2, 3, 4, 7) else cell.ljust(width)
