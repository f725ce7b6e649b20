"""Register the tables of a lake, once or continuously. A fault stays with its table; the others go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field, frozen

from korvet.lake.errors import LakeError, Unreachable, WrongTable, described
from korvet.lake.location import Location
from korvet.lake.registration.catalogue import Catalogue, Change, NotRegistered, register
from korvet.lake.registration.described import Described
from korvet.lake.registration.target import Target

logger = logging.getLogger(__name__)


@frozen
class Outcome:
    """The change that a round made to the entry of a table. `name` is the table's in the catalogue."""

    name: str = ""
    change: Change = Change.NONE
    error: str | None = None
    #: True if retrying may help.
    may_pass: bool = False


@define
class Rounds:
    """The registered tables of a lake. A job: `stop` ends it after the table in hand."""

    target: Target
    namespace: str
    lake: Location
    #: Returns the names of the tables to register; called in each round.
    tables: Callable[[], Sequence[str]] = tuple
    #: Leave out Delta tables that are not korvet's, instead of reporting them.
    skips_others: bool = False
    stopping: threading.Event = field(factory=threading.Event)
    _catalogue: Catalogue | None = None

    def stop(self) -> None:
        """End `run` after the table in hand."""
        self.stopping.set()

    def run(self, every_s: float | None, report: Callable[[Mapping[str, Outcome]], None]) -> None:
        """Register all tables, once or repeatedly, and report what each round did."""
        while True:
            report(self.round())
            if every_s is None or self.stopping.wait(every_s):
                return

    def round(self) -> dict[str, Outcome]:
        """Register each table once."""
        outcomes: dict[str, Outcome] = {}
        for table in self.tables():
            if self.stopping.is_set():
                break
            outcome = self.one(table)
            if outcome is not None:
                outcomes[table] = outcome
        return outcomes

    def one(self, table: str) -> Outcome | None:
        """Register a table once. Return None if it is left out."""
        try:
            described_table = Described.open(self.lake, table)
            if self._catalogue is None:
                self._catalogue = self.target.open()
            change = register(self._catalogue, self.namespace, described_table)
        except LakeError as error:
            if self.skips_others and isinstance(error, WrongTable):
                return None
            return Outcome(error=str(error), may_pass=isinstance(error, (Unreachable, NotRegistered)))
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("korvet"):
                raise
            extra = self.target.type
            return Outcome(error=f"the catalogue, for {error.name}, requires: pip install 'korvet[{extra}]'")
        except (
            Exception
        ) as error:  # catalogues raise the errors of their libraries, without a class in common
            logger.debug("registering %(topic)s failed", {"topic": table}, exc_info=True)
            return Outcome(error=f"the catalogue failed: {described(error)}", may_pass=True)
        return Outcome(f"{self.namespace}.{described_table.name}", change)
