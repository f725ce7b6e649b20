"""Plots as SVG: the coordinates that templates draw. Colours are in the style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from korvet.protocol.text import size_text
from korvet.web.history import SHOWN_S, Series

WIDTH, HEIGHT = 600.0, 80.0
MARGIN = 3.0
SHORTEST_S = 120.0  # the time that a plot shows when sampling has just begun
LEVELS = 5
COLUMNS, CELL = 32, 16


@frozen
class Plot:
    """Lines of a plot of the last hour, and its values in words."""

    lines: tuple[str, ...]
    now: str
    most: str
    minutes: int

    @property
    def text(self) -> str:
        return f"now {self.now}, at most {self.most} in the last hour"


def plot_of(series: Series) -> Plot | None:
    """Return the plot of a series, or None if it has no value yet. Unknown values interrupt the line."""
    known = [value for _, value in series.points if value is not None]
    if not known:
        return None
    most = max(known)
    span_s = max(SHORTEST_S, min(SHOWN_S, series.points[0][0]))
    lines: list[list[str]] = [[]]
    for ago_s, value in series.points:
        if value is None or ago_s > SHOWN_S:
            lines.append([])
            continue
        x = WIDTH - MARGIN - (WIDTH - 2 * MARGIN) * ago_s / span_s
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value / most if most else 0)
        lines[-1].append(f"{x:.1f},{y:.1f}")
    drawn = tuple(" ".join(line if len(line) > 1 else line * 2) for line in lines if line)
    now, top = (value_text(value, series.unit) for value in (known[-1], most))
    return Plot(drawn, now, top, round(span_s / 60))


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit."""
    if unit == "B/s":
        return f"{size_text(round(value))}/s"
    return f"{value:,.0f} {unit}" if value >= 10 or value == round(value) else f"{value:.1f} {unit}"


@frozen
class Cell:
    """A partition in a heat map. `level` is from 0 (nothing) to LEVELS (the most)."""

    number: int
    level: int
    text: str

    @property
    def x(self) -> int:
        return self.number % COLUMNS * CELL

    @property
    def y(self) -> int:
        return self.number // COLUMNS * CELL


@frozen
class HeatMap:
    """The partitions of a topic by one quantity."""

    title: str
    cells: Sequence[Cell]

    @property
    def width(self) -> int:
        return min(len(self.cells), COLUMNS) * CELL

    @property
    def height(self) -> int:
        return (len(self.cells) + COLUMNS - 1) // COLUMNS * CELL


def heat_map(title: str, values: Mapping[int, float], unit: str) -> HeatMap | None:
    """Return the heat map of values by partition, or None if there is none."""
    most = max(values.values(), default=0.0)
    if not values:
        return None
    cells = []
    for number, value in sorted(values.items()):
        level = -int(-LEVELS * value // most) if most else 0
        shown = size_text(round(value)) if unit == "B" else value_text(value, unit)
        cells.append(Cell(number, level, f"partition {number}: {shown}"))
    return HeatMap(title, cells)
