"""Mirror the tables of a lake, once or continuously. A fault stays with its table; the others go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from attrs import define, field, frozen

from korvet.lake.errors import CommitConflict, LakeError, Unreachable, WrongTable, described
from korvet.lake.iceberg.mirror import CatalogueRefused, Change, Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.upkeep import expire, remove_orphans
from korvet.lake.location import Location
from korvet.lake.mirrored import FOLDER

logger = logging.getLogger(__name__)

# Removing orphans reads all manifests, so it is done once in as many commits of a table.
CLEANED_EVERY = 100


@frozen
class Outcome:
    """The change that a round made to the Iceberg table of a topic. `version` is the Delta version that it shows."""

    version: int | None = None
    change: Change = Change.NONE
    added_files: int = 0
    removed_files: int = 0
    expired_snapshots: int = 0
    error: str | None = None
    #: True if retrying may help.
    may_pass: bool = False


@define
class Rounds:
    """The mirrored tables of a lake. A job: `stop` ends it after the commit in hand."""

    mirror: Mirror
    lake: Location
    #: Returns the names of the tables to mirror; called in each round.
    topics: Callable[[], Sequence[str]]
    keep: timedelta
    #: Leave out Delta tables that are not korvet's, instead of reporting them.
    skips_others: bool = False
    stopping: threading.Event = field(factory=threading.Event)
    _commits: dict[str, int] = field(factory=dict)  # since orphans were last removed

    def stop(self) -> None:
        """End `run` after the commit in hand."""
        self.stopping.set()

    def run(self, every_s: float | None, report: Callable[[Mapping[str, Outcome]], None]) -> None:
        """Mirror all topics, once or repeatedly, and report what each round did."""
        while True:
            report(self.round())
            if every_s is None or self.stopping.wait(every_s):
                return

    def round(self, *, rebuilds: bool = False) -> dict[str, Outcome]:
        """Mirror each topic once. With `rebuilds`, its Iceberg table is made again."""
        outcomes: dict[str, Outcome] = {}
        for topic in self.topics():
            if self.stopping.is_set():
                break
            outcome = self.one(topic, rebuilds=rebuilds)
            if outcome is not None:
                outcomes[topic] = outcome
        return outcomes

    def one(self, topic: str, *, rebuilds: bool = False) -> Outcome | None:
        """Mirror a topic once. Return None if its table is left out."""
        try:
            return self._mirrored(topic, rebuilds=rebuilds)
        except LakeError as error:
            if self.skips_others and isinstance(error, WrongTable):
                return None
            return Outcome(
                error=str(error), may_pass=isinstance(error, (Unreachable, CommitConflict, CatalogueRefused))
            )
        except (
            Exception
        ) as error:  # catalogues raise the errors of their libraries, without a class in common
            logger.debug("mirroring %(topic)s failed", {"topic": topic}, exc_info=True)
            return Outcome(error=f"the catalogue failed: {described(error)}", may_pass=True)

    def _mirrored(self, topic: str, *, rebuilds: bool) -> Outcome:
        original = Original.open(self.lake, topic)
        done = self.mirror.rebuild(original) if rebuilds else self.mirror.update(original)
        expired = 0
        if done.change is not Change.NONE:
            expired = self._tidied(topic)
        return Outcome(done.version, done.change, done.added, done.removed, expired)

    def _tidied(self, topic: str) -> int:
        """Expire snapshots, and now and then remove orphans. Return the number of expired snapshots."""
        now = datetime.now(UTC)
        table = self.mirror.table(topic)
        expired = expire(table, self.keep, now)
        self._commits[topic] = self._commits.get(topic, CLEANED_EVERY - 1) + 1
        if self._commits[topic] >= CLEANED_EVERY:
            remove_orphans(table, self.lake.child(topic).child(FOLDER), now)
            self._commits[topic] = 0
        return expired
