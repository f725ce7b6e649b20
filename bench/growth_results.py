"""The results of `bench.growth`: every round, in a JSON file; plots and tables in docs/."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Self

from attrs import asdict, define, field, frozen

#: The largest relative deviation from the smallest size that counts as flat.
TOLERANCE = 0.2


@frozen
class Point:
    """One measurement of a system at one size."""

    dimension: str
    measure: str
    unit: str
    system: str
    size: float


@frozen
class Line:
    """One measurement of a system as it grows: medians by size, ascending."""

    dimension: str
    measure: str
    unit: str
    system: str
    medians: Mapping[float, float]

    @property
    def is_rate(self) -> bool:
        return self.unit.endswith("/s")

    @property
    def relative(self) -> dict[float, float]:
        """The median at each size, relative to the smallest size."""
        first = self.medians[min(self.medians)]
        return {size: value / first for size, value in self.medians.items()}

    def is_flat_at(self, size: float) -> bool:
        """Return True if the median is within the tolerance of the smallest size's, or better."""
        ratio = self.relative[size]
        return ratio >= 1 - TOLERANCE if self.is_rate else ratio <= 1 + TOLERANCE


@define
class Growth:
    """Figures by point, in the order of measurement."""

    about: Mapping[str, str]
    rounds: dict[Point, list[float]] = field(factory=dict)

    def add(self, point: Point, value: float) -> None:
        """Add one round's figure, and print it."""
        self.rounds.setdefault(point, []).append(value)
        print(
            f"{point.size:>6g} {point.dimension:<18} {point.system:<8} {point.measure:<40}"
            f" {value:>12,.0f} {point.unit}",
            flush=True,
        )

    @property
    def lines(self) -> list[Line]:
        found: dict[tuple[str, str, str, str], dict[float, float]] = {}
        for point, figures in self.rounds.items():
            key = point.dimension, point.measure, point.unit, point.system
            found.setdefault(key, {})[point.size] = median(figures)
        return [Line(*key, dict(sorted(medians.items()))) for key, medians in found.items()]

    def of(self, dimension: str) -> list[Line]:
        return [line for line in self.lines if line.dimension == dimension]

    @property
    def dimensions(self) -> Sequence[str]:
        return list(dict.fromkeys(point.dimension for point in self.rounds))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        measured = [{**asdict(point), "rounds": figures} for point, figures in self.rounds.items()]
        path.write_text(json.dumps({"about": dict(self.about), "measured": measured}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        saved = json.loads(path.read_text())
        return cls(
            saved["about"],
            {
                Point(**{name: value for name, value in each.items() if name != "rounds"}): each["rounds"]
                for each in saved["measured"]
            },
        )
