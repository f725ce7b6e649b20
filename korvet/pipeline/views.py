"""The views of SQL: which topics and typed tables there are, and which of them a statement names. It needs no Spark."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from korvet.lake.errors import LakeError
from korvet.lake.listing import is_archive, tables_in
from korvet.lake.location import Location

if TYPE_CHECKING:
    from korvet.client import Security


class AmbiguousView(LakeError):  # noqa: N818  the name states the fault
    """Several topics or typed tables have the same name in SQL."""


@frozen
class Lake:
    """The location of tables, and the brokers with later records; without brokers, only tables are read."""

    location: Location
    bootstrap_servers: str | None = None
    typed: Location | None = None  # location of typed tables
    security: Security | None = None
    request_timeout_s: float = 30.0

    def topics(self) -> list[str]:
        """Return the tables among which the archives of topics are. `is_archive` opens one of them."""
        return tables_in(self.location)

    def typed_tables(self) -> list[str]:
        """Return the typed tables."""
        return [] if self.typed is None else tables_in(self.typed)


@frozen
class Source:
    """A topic, or a typed table at `typed`; its exact name in SQL, and its name without backticks."""

    name: str
    exact: str
    view: str
    typed: Location | None = None

    def __str__(self) -> str:
        return f"{'topic' if self.typed is None else 'typed table'} {self.name}"


def view_name(topic: str) -> str:
    """Return a topic's name in SQL, with an underscore for each character that identifiers cannot have."""
    return re.sub(r"\W", "_", topic, flags=re.ASCII)


def named_sources(lake: Lake, sql: str, quotes: str = "`") -> dict[str, Source]:
    """Return the topics and typed tables whose names occur in a statement, by these names.

    A topic is named by `view_name`, a typed table by typed_<table>. Between `quotes` the exact name is accepted, too.
    Raises LakeError, AmbiguousView if the statement has a name that several topics or tables have.
    """
    between = f"{quotes}([^{quotes}]+){quotes}"
    quoted = set(re.findall(between, sql))
    words = {word.lower() for word in re.findall(r"\w+", re.sub(between, " ", sql))}
    wanted: dict[str, list[Source]] = {}
    mentioned = words | {each.lower() for each in quoted}
    for source in _sources(lake):
        found = mentioned.intersection({source.view, source.exact.lower()})
        # Opening a table reads its log, so only those are opened that the statement mentions.
        if found and (source.typed is not None or is_archive(lake.location, source.name)):
            for name in found:
                wanted.setdefault(name, []).append(source)
    return {name: _one_of(name, sources, quoted) for name, sources in wanted.items()}


#: Words and signs by which a statement may read columns that it does not name.
UNNAMED = re.compile(r"\*|``|\|>|\(\s*from\b|\b(natural|table|pivot|unpivot|identifier)\b", re.IGNORECASE)


def named_columns(sql: str) -> set[str] | None:
    """Return words of a statement, in lower case, among which are all columns that it reads.

    Return None if it may read columns that it does not name.
    """
    text = re.sub(r"\bcount\s*\(\s*\*\s*\)", "", sql, flags=re.IGNORECASE)
    if UNNAMED.search(text) or not re.match(r"\s*(select|with)\b", text, re.IGNORECASE):
        return None
    quoted = re.findall(r"`([^`]+)`|\"([^\"]+)\"", text)
    return {word.lower() for word in (*re.findall(r"\w+", text), *map("".join, quoted))}


def _sources(lake: Lake) -> Iterator[Source]:
    for topic in lake.topics():
        yield Source(topic, topic, view_name(topic).lower())
    if lake.typed is not None:
        for table in lake.typed_tables():
            name = f"typed_{table}"
            yield Source(table, name, view_name(name).lower(), lake.typed.child(table))


def _one_of(name: str, sources: Sequence[Source], quoted: Collection[str]) -> Source:
    """Return the source that a name means: if several have it, the one whose exact name is in backticks."""
    exact = [each for each in sources if each.exact in quoted and each.exact.lower() == name]
    if len(sources) == 1 or len(exact) == 1:
        return (exact or sources)[0]
    raise AmbiguousView(
        f"{name} names several: {', '.join(map(str, sources))}; in SQL a name has an underscore for each "
        "character other than letters, digits and underscores, and no difference of case; the exact name in backticks "
        "names one of them."
    )
