"""Write the results as tables to docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.cases import BROKERS, ECHO, RAW_BATCH, RAW_RECORD
from bench.report import Case, Results, Verdict, figure

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
RATES = {"records/s", "requests/s"}


def write_results(results: Results) -> None:
    """Put the tables of `make bench` into the page. Raises ValueError if the page has no place for them."""
    write("results", "\n\n".join(sections(results)))


def write(name: str, text: str) -> None:
    """Replace the text between two comments of the page."""
    begin, end = f"<!-- {name}: written by the bench -->", f"<!-- end of {name} -->"
    page = PAGE.read_text(encoding="utf-8")
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"{PAGE} has no {begin} … {end}")
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def sections(results: Results) -> Iterator[str]:
    """Yield the conditions of the measurement, and each table that has figures."""
    yield described(results.about)
    rates = [case for case in results.cases if case.unit in RATES]
    others = [case for case in results.cases if case.unit not in RATES]
    systems = present(results, (*BROKERS, RAW_BATCH, RAW_RECORD, ECHO))
    if rates:
        yield "Medians; in brackets the least and the most."
        yield table(["a second", *systems], [[case.name, *spreads(results, case, systems)] for case in rates])
        yield from processor_times(results, rates)
    if others:
        systems = present(results, BROKERS)
        yield table(
            ["", *systems],
            [[f"{case.name}, {case.unit}", *spreads(results, case, systems)] for case in others],
        )
    yield from goals(results)


def described(about: Mapping[str, str]) -> str:
    """Return the date, the command and the machine."""
    names = ("machine", "python", "korvet", "server", "peer", "client")
    versions = {**about, "korvet": f"korvet {about.get('korvet', '')}"}
    on = "; ".join(versions[name] for name in names if name in about)
    return f"Measured on {about.get('date', '?')} with `{about.get('command', 'python -m bench')}`.\n{on}."


def processor_times(results: Results, rates: Sequence[Case]) -> Iterator[str]:
    """Yield the processor times of brokers, including their servers."""
    systems = present(results, BROKERS)
    rows = [
        [case.name, *(_or_empty(results.median(case.processor_time(), system)) for system in systems)]
        for case in rates
    ]
    if any(cell for row in rows for cell in row[1:]):
        yield "Processor seconds of the broker, and of its Valkey, for a million records (requests):"
        yield table(["", *systems], rows)


def goals(results: Results) -> Iterator[str]:
    """Yield ratios to the peer, and every goal with its result."""
    systems = [system for system in present(results, BROKERS) if system != results.peer]
    rows = []
    for case in results.cases:
        cells = [_goal_cell(results, case, system) for system in systems]
        if any(cells):
            rows.append([case.name, *cells])
    if rows:
        yield "Ratios of the medians, and goals in brackets; **bold** is one that was not reached:"
        yield table(["", *systems], rows)


def _goal_cell(results: Results, case: Case, system: str) -> str:
    cells = [_shown(case, each) for each in results.verdicts(case, system)]
    ratio = results.ratio(case, system, results.peer)
    if ratio is not None and not any(each.goal.of == results.peer for each in results.verdicts(case, system)):
        cells.insert(0, f"{figure(ratio)} of {results.peer}")
    return ", ".join(cells)


def _shown(case: Case, verdict: Verdict) -> str:
    unit = "" if verdict.goal.of else f" {case.unit}"
    value = rounded(verdict.value) + unit
    bold = value if verdict.is_reached else f"**{value}**"
    return f"{bold}{verdict.of} ({verdict.sign} {rounded(verdict.goal.value)})"


def present(results: Results, systems: Sequence[str]) -> list[str]:
    """Return the systems that have figures."""
    return [system for system in systems if any(measured == system for _, measured in results.rounds)]


def spreads(results: Results, case: Case, systems: Sequence[str]) -> list[str]:
    """Return median, minimum and maximum of each system; empty if it has no figures."""
    found = [results.rounds.get((case, system)) for system in systems]
    return [
        f"{rounded(median(each))} ({rounded(min(each))} to {rounded(max(each))})" if each else ""
        for each in found
    ]


def rounded(value: float) -> str:
    """Format a value with M for millions and k for thousands."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 10_000:
        return f"{value / 1e3:.0f} k"
    return figure(value)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _or_empty(value: float | None) -> str:
    return "" if value is None else figure(value)
