"""Register the tables of a lake, once or continuously."""

from __future__ import annotations

from attrs import define, frozen

from korvet.lake.errors import LakeError, Unreachable
from korvet.lake.location import Location
from korvet.lake.registration.catalogue import Catalogue, Change, NotRegistered, register
from korvet.lake.registration.described import Described
from korvet.lake.registration.target import Target
from korvet.lake.table_rounds import TableRounds


class MissingExtra(LakeError):  # noqa: N818  the name states the fault
    """The catalogue's library is not installed."""


@frozen
class Outcome:
    """The change that a round made to the entry of a table. `name` is the table's in the catalogue."""

    name: str = ""
    change: Change = Change.NONE
    error: str | None = None
    #: True if retrying may help.
    may_pass: bool = False


@define
class Rounds(TableRounds[Outcome]):
    """The registered tables of a lake."""

    PASSING = (Unreachable, NotRegistered)

    target: Target
    namespace: str
    lake: Location
    _catalogue: Catalogue | None = None

    def _done(self, table: str) -> Outcome:
        described = Described.open(self.lake, table)
        if self._catalogue is None:
            self._catalogue = self._opened()
        change = register(self._catalogue, self.namespace, described)
        return Outcome(f"{self.namespace}.{described.name}", change)

    def _opened(self) -> Catalogue:
        """Return the catalogue. Raises MissingExtra, and the errors of its library."""
        try:
            return self.target.open()
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("korvet"):
                raise
            raise MissingExtra(
                f"the catalogue, for {error.name}, requires: pip install 'korvet[{self.target.type}]'"
            ) from None

    def _failed(self, error: str, *, may_pass: bool) -> Outcome:
        return Outcome(error=error, may_pass=may_pass)
