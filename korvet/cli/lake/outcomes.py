"""Run rounds over the tables of a lake, and print what they did: `korvet lake mirror` and `korvet lake register`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import click
from attrs import asdict, define, field

from korvet.cli.lake.options import no_archive, split_names
from korvet.cli.lake.running import ended_by_signals
from korvet.cli.output import print_json

if TYPE_CHECKING:
    from attrs import AttrsInstance

    from korvet.lake.location import Location
    from korvet.lake.table_rounds import TableRounds

    class Outcome(AttrsInstance, Protocol):
        """The change that a round made to a table, or its error."""

        @property
        def change(self) -> str: ...
        @property
        def error(self) -> str | None: ...


def tables(location: Location, names: str | None) -> list[str]:
    """Return the comma-separated names, or those of all Delta tables. Raises LakeError, and NoTable without any."""
    from korvet.lake.listing import tables_in

    if names is not None:
        return split_names(names)
    found = tables_in(location)
    if not found:
        raise no_archive(location)
    return found


def run_and_print(
    rounds: TableRounds[Any], every_s: float | None, summary: Callable[[Any], str], *, is_json: bool
) -> None:
    """Run rounds, and print what they did. Exit with 1 if a table failed in the last one."""
    display = Display(summary, is_json=is_json, is_repeated=every_s is not None)
    with ended_by_signals(rounds):
        rounds.run(every_s, display.show)
    if display.failed:
        raise SystemExit(1)


@define
class Display:
    """Prints what rounds did: the first one whole, later ones only if a table changed or has another error."""

    #: Returns what a round did to a table, in words.
    summary: Callable[[Any], str]
    is_json: bool
    is_repeated: bool
    failed: dict[str, str] = field(factory=dict)  # the errors of the last round
    _is_first: bool = True

    def show(self, outcomes: Mapping[str, Outcome]) -> None:
        before, self.failed = (
            self.failed,
            {topic: each.error for topic, each in outcomes.items() if each.error},
        )
        changed = {
            topic: each
            for topic, each in outcomes.items()
            if self._is_first
            or (each.error != before.get(topic) if each.error else each.change != "up to date")
        }
        self._is_first = False
        if self.is_json and (changed or not self.is_repeated):
            print_json({topic: asdict(each) for topic, each in changed.items()})
            return
        for topic, each in changed.items():
            if each.error:
                click.echo(f"korvet: {topic}: {each.error}", err=True)
            else:
                click.echo(f"{topic}: {self.summary(each)}")
