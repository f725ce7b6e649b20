"""The plots and the table of `bench.growth`, in docs/benchmarks.md and docs/growth.png."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.growth_results import TOLERANCE, Growth, Line
from bench.page import PAGE, described, rounded, table, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT = PAGE.with_name("growth.png")
COLOURS = {"memory": "tab:blue", "batch": "tab:orange", "record": "tab:green"}
# Ratios above this use a logarithmic axis; on a linear one all other lines would be flat at the bottom.
LOGARITHMIC_FROM = 2.0
STYLES = ("-", "--", "-.", ":")


def write_growth(growth: Growth) -> None:
    """Draw the plots, and replace the page's table."""
    plot(growth)
    picture = "![Throughput and latency at each size, relative to the smallest](growth.png)"
    note = (
        "In the plots 1 is the figure at the smallest size, and the grey band is 20 % around it; "
        "in the table, **bold** is worse than that."
    )
    write("growth", "\n\n".join([described(growth.about), picture, note, as_table(growth)]))


def as_table(growth: Growth) -> str:
    """Return a table per dimension: medians, with the ratio to the smallest size in brackets."""
    return "\n\n".join(_table(dimension, growth.of(dimension)) for dimension in growth.dimensions)


def _table(dimension: str, lines: list[Line]) -> str:
    sizes = sorted({size for line in lines for size in line.medians})
    rows = [
        [line.measure, line.system, line.unit, *(_cell(line, size) for size in sizes)]
        for line in sorted(lines, key=lambda line: line.system)
    ]
    return table([dimension, "storage", "unit", *(f"{size:g}" for size in sizes)], rows)


def _cell(line: Line, size: float) -> str:
    if size not in line.medians:
        return ""
    value, ratio = rounded(line.medians[size]), line.relative[size]
    if size == min(line.medians):
        return value
    return f"{value} ({ratio:.2f})" if line.is_flat_at(size) else f"{value} (**{ratio:.2f}**)"


def plot(growth: Growth) -> None:
    """Plot throughput above and latency below, one column per dimension."""
    # Imported here because measuring does not need it.
    from matplotlib.figure import Figure  # noqa: PLC0415

    dimensions = growth.dimensions
    figure = Figure(figsize=(5.5 * len(dimensions), 10), layout="constrained")
    axes = figure.subplots(2, len(dimensions), squeeze=False)
    for column, dimension in enumerate(dimensions):
        lines = growth.of(dimension)
        _draw(axes[0][column], dimension, "throughput", [line for line in lines if line.is_rate])
        _draw(axes[1][column], dimension, "latency", [line for line in lines if not line.is_rate])
    figure.savefig(PLOT, dpi=80)


def _draw(axis: Axes, dimension: str, what: str, lines: Sequence[Line]) -> None:
    """Draw lines relative to the smallest size. Sizes have equal distances because they are powers."""
    sizes = sorted({size for line in lines for size in line.medians})
    measures = list(dict.fromkeys(line.measure for line in lines))
    axis.axhspan(1 - TOLERANCE, 1 + TOLERANCE, color="0.9")
    for line in lines:
        axis.plot(
            [sizes.index(size) for size in line.relative],
            list(line.relative.values()),
            STYLES[measures.index(line.measure) % len(STYLES)],
            color=COLOURS.get(line.system),
            marker="o",
            label=f"{line.system}: {line.measure}",
        )
    axis.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
    axis.set_xlabel(dimension)
    axis.set_ylabel(what)
    if max((max(line.relative.values()) for line in lines), default=0) > LOGARITHMIC_FROM:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, 2)
    axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12))
