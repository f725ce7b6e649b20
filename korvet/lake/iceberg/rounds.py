"""Mirror the tables of a lake, once or continuously."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from attrs import define, field, frozen

from korvet.lake.errors import CommitConflict, Unreachable
from korvet.lake.iceberg.mirror import CatalogueRefused, Change, Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.upkeep import expire, remove_orphans
from korvet.lake.location import Location
from korvet.lake.mirrored import FOLDER
from korvet.lake.table_rounds import TableRounds

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
class Rounds(TableRounds[Outcome]):
    """The mirrored tables of a lake."""

    PASSING = (Unreachable, CommitConflict, CatalogueRefused)

    mirror: Mirror
    lake: Location
    keep: timedelta
    #: Make the Iceberg tables again.
    rebuilds: bool = False
    _commits: dict[str, int] = field(factory=dict)  # since orphans were last removed

    def _done(self, table: str) -> Outcome:
        original = Original.open(self.lake, table)
        done = self.mirror.rebuild(original) if self.rebuilds else self.mirror.update(original)
        expired = 0
        if done.change is not Change.NONE:
            expired = self._tidied(table)
        return Outcome(done.version, done.change, done.added, done.removed, expired)

    def _failed(self, error: str, *, may_pass: bool) -> Outcome:
        return Outcome(error=error, may_pass=may_pass)

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
