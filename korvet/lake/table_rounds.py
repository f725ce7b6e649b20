"""Work on the tables of a lake in rounds, once or continuously. A fault stays with its table; the others go on."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from attrs import define, field

from korvet.lake.errors import LakeError, WrongTable, described

logger = logging.getLogger(__name__)

T = TypeVar("T")


@define
class TableRounds(ABC, Generic[T]):
    """The work that makes a catalogue follow the tables of a lake. A job: `stop` ends it after the table in hand."""

    #: The errors after which retrying may help.
    PASSING: ClassVar[tuple[type[LakeError], ...]]

    #: Returns the names of the tables; called in each round.
    tables: Callable[[], Sequence[str]] = field(default=tuple, kw_only=True)
    #: Leave out Delta tables that are not korvet's, instead of reporting them.
    skips_others: bool = field(default=False, kw_only=True)
    stopping: threading.Event = field(factory=threading.Event, kw_only=True)

    def stop(self) -> None:
        """End `run` after the table in hand."""
        self.stopping.set()

    def run(self, every_s: float | None, report: Callable[[Mapping[str, T]], None]) -> None:
        """Do all tables, once or repeatedly, and report what each round did."""
        while True:
            report(self.round())
            if every_s is None or self.stopping.wait(every_s):
                return

    def round(self) -> dict[str, T]:
        """Do each table once."""
        outcomes: dict[str, T] = {}
        for table in self.tables():
            if self.stopping.is_set():
                break
            outcome = self.one(table)
            if outcome is not None:
                outcomes[table] = outcome
        return outcomes

    def one(self, table: str) -> T | None:
        """Do a table once. Return None if it is left out."""
        try:
            return self._done(table)
        except LakeError as error:
            if self.skips_others and isinstance(error, WrongTable):
                return None
            return self._failed(str(error), may_pass=isinstance(error, self.PASSING))
        except (
            Exception
        ) as error:  # catalogues raise the errors of their libraries, without a class in common
            logger.debug("the catalogue failed for %(topic)s", {"topic": table}, exc_info=True)
            return self._failed(f"the catalogue failed: {described(error)}", may_pass=True)

    @abstractmethod
    def _done(self, table: str) -> T:
        """Do a table once. Raises LakeError, and the errors of the catalogue's library."""

    @abstractmethod
    def _failed(self, error: str, *, may_pass: bool) -> T:
        """Return the outcome of an error. `may_pass` states whether retrying may help."""
