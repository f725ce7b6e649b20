"""Keep a catalogue's entry of a Delta table equal to the table: its location and its columns.

A catalogue is no part of a table's commits. Each round compares the entry with the newest version of the table, so
nothing that was lost before matters, and two programs that register the same table write the same.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import unquote

from attrs import frozen

from korvet.lake.errors import LakeError
from korvet.lake.registration.described import Described

ROUNDS = 5


class NameTaken(LakeError):  # noqa: N818  the name states the fault
    """The catalogue has another table of this name."""


class NotRegistered(LakeError):  # noqa: N818  the name states the fault
    """The catalogue refuses the table, or cannot be reached."""


class Preceded(Exception):  # noqa: N818  the name states the fault
    """Another program has created, changed or removed the entry meanwhile."""


class NoNamespace(Exception):  # noqa: N818  the name states the fault
    """The catalogue has no such namespace."""


class Change(StrEnum):
    """The kinds of change that a round makes to an entry."""

    REGISTERED = "registered"
    UPDATED = "updated"
    NONE = "up to date"


@frozen
class Entry:
    """A table in a catalogue. `original` is the catalogue's own object."""

    location: str
    is_delta: bool
    #: True if the entry has the columns of the table with which it was looked up.
    is_current: bool
    original: Any = None


class Catalogue(Protocol):
    """A catalogue of Delta tables. The methods raise the errors of its library as well."""

    def find(self, namespace: str, table: Described) -> Entry | None:
        """Return the entry of the table's name, None if there is none."""

    def create(self, namespace: str, table: Described) -> None:
        """Create the entry. Raises NoNamespace, and Preceded if there is one."""

    def update(self, namespace: str, table: Described, entry: Entry) -> None:
        """Replace the columns of an entry. Raises Preceded if there is no such entry any more."""

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace; succeed if there is one."""


def register(catalogue: Catalogue, namespace: str, table: Described) -> Change:
    """Make the catalogue's entry equal to the table. Raises NameTaken, NotRegistered and the library's errors."""
    for _ in range(ROUNDS):
        entry = catalogue.find(namespace, table)
        try:
            if entry is None:
                catalogue.create(namespace, table)
                return Change.REGISTERED
            if not entry.is_delta or not is_same_place(entry.location, table.location.url):
                raise NameTaken(
                    f"{namespace}.{table.name} is another table in the catalogue"
                    f"{f', at {entry.location}' if entry.location else ''}; choose another namespace."
                )
            if entry.is_current:
                return Change.NONE
            catalogue.update(namespace, table, entry)
        except NoNamespace:
            catalogue.create_namespace(namespace)
        except Preceded:
            continue
        else:
            return Change.UPDATED
    raise NotRegistered(f"{namespace}.{table.name}: others change the entry all the time; try again.")


def is_same_place(one: str, other: str) -> bool:
    """Return True if two URLs name the same folder. Programs write file: and s3: in several ways."""
    return _normalized(one) == _normalized(other)


def _normalized(url: str) -> str:
    scheme, _, rest = url.partition(":")
    scheme = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}.get(scheme, scheme)
    return f"{scheme}:{unquote(rest).strip('/')}"
