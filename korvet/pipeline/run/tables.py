"""One table of a run: its schedule, its decoding, its mirror and its upkeep."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

from attrs import define, evolve, field, frozen

from korvet.client import Topic
from korvet.lake.compacting import Compaction, groups_by_class
from korvet.lake.errors import CommitConflict, LakeError, OutOfOrder, Unreachable
from korvet.lake.listing import is_table
from korvet.lake.location import Location
from korvet.lake.retention import retain
from korvet.lake.snapshots import Snapshot
from korvet.lake.table import LakeTable
from korvet.lake.vacuuming import last_vacuum_ms, vacuum
from korvet.pipeline.archive_workers import SparkFailed
from korvet.pipeline.decoding.distributing import Distribute
from korvet.pipeline.decoding.expiring import drop_before
from korvet.pipeline.decoding.job import Progress
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.joining import groups_by_class as decoded_groups_by_class
from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.registry import RegistryError
from korvet.pipeline.decoding.rounds import Decoding
from korvet.pipeline.decoding.specification import Specification
from korvet.pipeline.decoding.tables import DecodedTable
from korvet.pipeline.run.policy import LEAST_KEPT_S
from korvet.pipeline.run.schedule import ARCHIVE, Health, TableSchedule

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Snapshot)


class Mirrors(Protocol):
    """The mirrors of a lake's tables, as `korvet.lake.iceberg.rounds` has them."""

    def one(self, topic: str) -> MirrorOutcome | None:
        """Mirror a table once. Return None if it is left out."""


class Registrations(Protocol):
    """The registration of a lake's tables in a catalogue, as `korvet.lake.registration.rounds` has it."""

    def one(self, table: str) -> RegistrationOutcome | None:
        """Register a table once. Return None if it is left out."""


class RegistrationOutcome(Protocol):
    """The part of a registration's outcome that a run reads."""

    @property
    def error(self) -> str | None: ...
    @property
    def may_pass(self) -> bool: ...


class MirrorOutcome(Protocol):
    """The part of a mirror's outcome that a run reads."""

    @property
    def version(self) -> int | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def may_pass(self) -> bool: ...


@frozen
class Places:
    """The locations of a run's tables, and the means of their work, which all tables share."""

    lake: Location
    typed: Location
    distribute: Distribute
    archives: Mirrors | None = None
    decoded: Mirrors | None = None
    registered_archives: Registrations | None = None
    registered_decoded: Registrations | None = None
    #: Catalogues of PyIceberg are not made for several threads.
    mirroring: threading.Lock = field(factory=threading.Lock)


@define
class TypedWork:
    """The decoding to one typed table. `complete_up_to` are archived offsets that it has certainly reached."""

    decoding: Decoding
    health: Health = field(factory=Health)
    complete_up_to: Mapping[int, int] | None = None
    #: Milliseconds since 1970: the table has all records that were appended before. None if unknown.
    fresh_until_ms: int | None = None

    def is_due(self, archive: LakeTable, now: float) -> bool:
        """Return True if a round may have something to do, and may be attempted."""
        is_complete = self.complete_up_to == archive.archived_up_to and not self.health.error
        return self.health.is_ready(now) and not is_complete


@define
class Table:
    """A topic's tables in a run."""

    topic: str
    schedule: TableSchedule
    #: The topic as the broker describes it; None if it does not exist.
    described: Topic | None = None
    #: The archive's newest snapshot.
    archive: LakeTable | None = None
    decoded: Progress = field(init=False)
    mirrored_version: int | None = None
    #: The archive's version as of the last work on its files.
    tended_version: int | None = None
    #: True if there is more to decode.
    has_more: bool = False
    files: tuple[int, ...] = ()  # sizes in bytes
    #: By location, the versions of typed and dlq tables as of the last work on their files.
    tended_decoded: dict[str, int] = field(factory=dict)
    #: One typed table, or one for each of the topic's record types.
    typed: list[TypedWork] = field(factory=list)
    #: The specification of which `typed` was made.
    _specification: Specification | None = None
    _mirror_is_due: bool = True
    #: The columns of the tables at their last registration, as Delta's JSON by location.
    _registered: dict[str, str] = field(factory=dict)
    #: ARCHIVE, and the locations of typed and dlq tables, for those whose last vacuum was read from the log.
    _vacuums_read: set[str] = field(factory=set)
    _mirror_clear_s: float = field(factory=time.monotonic)

    def __attrs_post_init__(self) -> None:
        self.decoded = Progress(self.topic)

    def tend(self, places: Places, now: float, *, once: bool) -> None:
        """Do the work that follows the archive: decode, drop, join, mirror, register, vacuum.

        Errors are in the schedule. Raises JavaEnded.
        """
        self._decode(places, now, once=once)
        self._keep(places, now)
        self._mirror(places, now)
        self._register(places, now)
        self._vacuum(now)

    # --- Typed tables ---------------------------------------------------------------------------------------

    def _decodings(self) -> list[Decoding]:
        return [each.decoding for each in self.typed]

    def _decode(self, places: Places, now: float, *, once: bool) -> None:
        specification, health = self.schedule.policy.decode, self.schedule.decode
        self.has_more = False
        if specification is None:
            health.succeeded()
            return
        if self.archive is None:
            return
        if self._specification != specification:
            self._specification = specification
            self.typed = [
                TypedWork(Decoding(each, places.lake, places.typed, places.distribute, once=once))
                for each in specification.by_record()
            ]
        for each in self.typed:  # it grows
            if each.is_due(self.archive, now):
                self._decode_round(each, self.archive.archived_up_to, now)
                self._follow_found(each.decoding)
        health.summarize([each.health for each in self.typed])

    def _follow_found(self, decoding: Decoding) -> None:
        """Decode the record types that a table has found to tables of their own."""
        there = {each.specification.table for each in self._decodings()}
        new = [each for each in decoding.found if each.table not in there]
        self.typed += [TypedWork(evolve(decoding, specification=each)) for each in new]

    def _decode_round(self, work: TypedWork, upto: Mapping[int, int], now: float) -> None:
        """Run a round of one typed table."""
        decoding, health = work.decoding, work.health
        name = decoding.specification.name
        where = "decode" if name == self.topic else f"decode {name}"
        try:
            if needs_spark(decoding.specification):
                _ = decoding.distribute.parallelism  # starts Spark, which parses the schema
            result = decoding.round()
        except (CommitConflict, OutOfOrder) as error:  # another run decodes the same
            log.info("%(error)s", {"error": error, "topic": self.topic})
            self.has_more = True
        except (Unreachable, RegistryError, SparkFailed, OSError) as error:
            health.failed(now, f"{where}: {error}", may_pass=True)
        except (LakeError, SchemaFault) as error:
            health.failed(now, f"{where}: {error}", may_pass=False)
        else:
            health.succeeded()
            if result is None:
                work.complete_up_to = upto
            else:
                self.has_more = True
                self.decoded.add(result)
                self._mirror_is_due = True

    # --- Files ----------------------------------------------------------------------------------------------

    def _keep(self, places: Places, now: float) -> None:
        """Drop expired rows, and join small files."""
        health = self.schedule.upkeep
        if self.archive is None or not health.is_ready(now):
            return
        with self._upkeep_errors(now):
            faults = [*self._keep_archive(self.archive, places, now), *self._keep_decoded(places, now)]
            if faults:
                health.failed(now, f"join: {faults[0]}", may_pass=False)
            else:
                health.succeeded()

    @contextmanager
    def _upkeep_errors(self, now: float) -> Iterator[None]:
        """Note errors of the block in the schedule."""
        health = self.schedule.upkeep
        try:
            yield
        except CommitConflict as error:  # another run joins the same files, or was faster: look again later
            log.info("%(error)s", {"error": error, "topic": self.topic})
        except (Unreachable, SparkFailed, OSError) as error:
            health.failed(now, f"upkeep: {error}", may_pass=True)
        except LakeError as error:
            health.failed(now, f"upkeep: {error}", may_pass=False)

    def _keep_archive(self, archive: LakeTable, places: Places, now: float) -> list[str]:
        """Look after the archive. Return the faults of files that cannot be joined."""
        schedule, policy = self.schedule, self.schedule.policy
        cutoff_ms = (
            time.time_ns() // 1_000_000 - round(policy.retain_s * 1000) if policy.retain_s < math.inf else 0
        )
        if schedule.retain_is_due(now) and retain(places.lake, self.topic, cutoff_ms):
            archive = self.archive = archive.reopened()
        if archive.version == self.tended_version and not schedule.upkeep.error:
            return []
        self._mirror_is_due = True
        if policy.join and not schedule.is_standby:
            compaction = Compaction(archive, find=groups_by_class)
            done = compaction.run()
            archive = self.archive = compaction.table
            if done.errors:
                return done.errors
        self.tended_version = archive.version
        self.files = tuple(file.size for file in archive.files)
        return []

    def _keep_decoded(self, places: Places, now: float) -> list[str]:
        """Look after the typed and the dlq table. Return the faults of files that cannot be joined."""
        if self.schedule.is_standby:
            return []
        faults: list[str] = []
        for decoding in self._decodings():
            if decoding.typed is not None:
                decoding.typed = self._kept(decoding.typed, places, now, faults)
            if decoding.dlq is not None:
                decoding.dlq = self._kept(decoding.dlq, places, now, faults)
        return faults

    def _kept(self, table: DecodedTable, places: Places, now: float, faults: list[str]) -> DecodedTable:
        """Look after a typed or a dlq table, and return its newest snapshot."""
        schedule, policy = self.schedule, self.schedule.policy
        if schedule.retain_is_due(now, table.location.url):
            table = drop_before(table, time.time_ns() // 1_000_000 - round(policy.retain_typed_s * 1000))
        if table.version == self.tended_decoded.get(table.location.url) and not schedule.upkeep.error:
            return table
        self._mirror_is_due = True
        if policy.join:
            joins = DecodedJoins(table, find=decoded_groups_by_class, distribute=places.distribute)
            found = joins.run().errors
            table = joins.table
            if found:
                faults += found
                return table
        self.tended_decoded[table.location.url] = table.version
        return table

    # --- Iceberg --------------------------------------------------------------------------------------------

    def mirror_lag_s(self, now: float) -> float | None:
        """Return for how long the Iceberg table has lacked a version of the archive; None if there is none."""
        if not self.schedule.policy.iceberg or self.archive is None:
            return None
        return max(0.0, now - self._mirror_clear_s) if self._mirror_is_due else 0.0

    def _mirror(self, places: Places, now: float) -> None:
        health = self.schedule.mirror
        if not self.schedule.policy.iceberg:
            health.succeeded()
            return
        if self.archive is None or not health.is_ready(now):
            return
        if not self._mirror_is_due and not health.error:
            self._mirror_clear_s = now
            return
        with places.mirroring:
            outcomes = [places.archives.one(self.topic)] if places.archives is not None else []
            if places.decoded is not None:
                outcomes += [places.decoded.one(table) for table in self._typed_tables(places.typed)]
        failed = next((each for each in outcomes if each is not None and each.error), None)
        if failed is not None:
            health.failed(now, f"mirror: {failed.error}", may_pass=failed.may_pass)
            return
        health.succeeded()
        self._mirror_is_due = False
        self._mirror_clear_s = now
        self.mirrored_version = next((each.version for each in outcomes if each is not None), None)

    # --- Registration ---------------------------------------------------------------------------------------

    def _register(self, places: Places, now: float) -> None:
        """Register the tables that are new, or have other columns than at their last registration."""
        health = self.schedule.register
        if (
            places.registered_archives is None
            or places.registered_decoded is None
            or not self.schedule.policy.register
        ):
            health.succeeded()
            return
        if self.archive is None or not health.is_ready(now):
            return
        error = self._registration_error(places.registered_archives, self.archive, self.topic)
        for table in [each for one in self._decodings() for each in (one.typed, one.dlq)]:
            if table is not None:
                name = table.location.url.rpartition("/")[2]
                error = self._registration_error(places.registered_decoded, table, name) or error
        if error is None:
            health.succeeded()
        else:
            health.failed(now, f"register: {error.error}", may_pass=error.may_pass)

    def _registration_error(
        self, registrations: Registrations, table: Snapshot, name: str
    ) -> RegistrationOutcome | None:
        """Register a table if it is due. Return the outcome if it is an error."""
        columns = table.delta.schema().to_json()
        key = str(table.location)
        if self._registered.get(key) == columns:
            return None
        outcome = registrations.one(name)
        if outcome is not None and outcome.error:
            return outcome
        self._registered[key] = columns
        return None

    # --- Vacuum ---------------------------------------------------------------------------------------------

    def _vacuum(self, now: float) -> None:
        """Remove files that neither the tables nor their Iceberg tables reference, once a day."""
        schedule = self.schedule
        if self.archive is None or schedule.is_standby or schedule.upkeep.error:
            return
        lag_s = self.mirror_lag_s(now)
        if lag_s is not None:
            # Iceberg's readers see replaced files until the mirror commits, and in older snapshots for a day more.
            is_late = lag_s > schedule.policy.keep_files_s - LEAST_KEPT_S
            if is_late:
                schedule.postpone_vacuums(now)
            if is_late or self.mirrored_version is None:  # before this run, it may have been late
                return
        with self._upkeep_errors(now):
            self.archive = self._vacuumed(self.archive, now, ARCHIVE)
            for decoding in self._decodings():
                if decoding.typed is not None:
                    decoding.typed = self._vacuumed(decoding.typed, now, decoding.typed.location.url)
                if decoding.dlq is not None:
                    decoding.dlq = self._vacuumed(decoding.dlq, now, decoding.dlq.location.url)

    def _vacuumed(self, table: S, now: float, place: str) -> S:
        """Vacuum a table if that is due. Return its newest snapshot then."""
        last_s = None
        if place not in self._vacuums_read:  # the log has the vacuums before this run
            last_ms = last_vacuum_ms(table)
            last_s = None if last_ms is None else now - max(0.0, time.time() - last_ms / 1000)
            self._vacuums_read.add(place)
        if not self.schedule.vacuum_is_due(now, last_s, place):
            return table
        newest = table.reopened()  # the files of commits that this run has not seen are not unreferenced
        if newest.version != table.version and self.schedule.policy.iceberg:
            self._mirror_is_due = True
            self.schedule.postpone_vacuums(now)
        else:
            vacuum(newest, math.ceil(self.schedule.policy.keep_files_s / 3600))
        return newest

    def _typed_tables(self, typed: Location) -> list[str]:
        """Return the names of the typed tables that exist."""
        if self.schedule.policy.decode is None:
            return []
        tables = [each.specification.table for each in self._decodings()]
        return [table for table in tables if is_table(typed.child(table))]


def needs_spark(specification: Specification) -> bool:
    """Return True if only Spark can parse the schema."""
    if specification.key_format == "json":
        return True
    file = specification.schema_file
    return specification.format == "json" and (
        specification.schema is not None or (file is not None and not file.endswith(".json"))
    )


def healths_that_may_pass(schedule: TableSchedule) -> list[Health]:
    """Return the kinds of work that failed, and may succeed if they are attempted again."""
    return [health for health in schedule.healths if health.error and health.may_pass]
