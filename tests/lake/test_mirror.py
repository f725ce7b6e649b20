"""An Iceberg table has the rows of its archive, whatever happens to a mirror, and whoever else commits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attrs import define, field
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.table import CommitTableResponse, Table

from korvet.lake.compacting import Compaction
from korvet.lake.erasing import Erasure, key_set
from korvet.lake.errors import InvalidLocation
from korvet.lake.iceberg.catalogs import NoCatalogue, open_catalogue
from korvet.lake.iceberg.mirror import CatalogueRefused, Change, Diverged, Mirror, live_files
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.iceberg.rounds import Rounds
from korvet.lake.iceberg.upkeep import KEPT, SLACK, expire, remove_orphans
from korvet.lake.location import Location
from korvet.lake.mirrored import FOLDER, MirrorUnknown, shown_versions
from korvet.lake.retention import drop_before
from korvet.lake.table import LakeTable
from korvet.lake.vacuuming import vacuum
from tests.lake.iceberg_reading import rows_of_iceberg
from tests.lake.replay import rows_of
from tests.lake.s3 import s3_store
from tests.lake.support import DAY_MS, NOON, TOPIC, TOPIC_ID, lake, written

NAME = ("korvet", TOPIC)
#: PyIceberg's properties of running catalogues by kind, as JSON: `make conformance PARTS=catalogues` starts them.
RUNNING: dict[str, dict[str, str]] = json.loads(os.environ.get("MIRROR_CATALOGUES", "{}"))
KINDS = ("path", "sql", *RUNNING)


def catalogue(folder: Path, kind: str) -> Any:
    """Open a new catalogue object, as another process would."""
    if kind == "path":
        return PathCatalog(lake(folder), FOLDER)
    if kind == "sql":
        return SqlCatalog("korvet", uri=f"sqlite:///{folder}/catalogue.db", warehouse=str(folder))
    return open_catalogue(lake(folder), None, RUNNING[kind])


@pytest.fixture(autouse=True)
def emptied(tmp_path: Path) -> None:
    """Remove the table of an earlier test from catalogues that go on."""
    for kind in RUNNING:
        with suppress(NoSuchTableError):
            catalogue(tmp_path, kind).drop_table(NAME)


@pytest.fixture(params=KINDS)
def open_mirror(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], Mirror]:
    return lambda: Mirror(catalogue(tmp_path, request.param), "korvet")


@pytest.fixture
def archive(tmp_path: Path) -> LakeTable:
    return LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)


def grown(archive: LakeTable, times: int = 1, key: bytes | None = None) -> LakeTable:
    """Commit as many ranges of ten records; those of the fourth have no date."""
    for _ in range(times):
        start = archive.archived_up_to.get(0, 0)
        timestamps = [NOON + start // 30 * DAY_MS + each for each in range(10)]
        if start == 30:
            timestamps = [-(2**62)] * 10
        archive = archive.commit([written(archive, start, start + 10, timestamps=timestamps, key=key)])
    return archive


def original(table: LakeTable) -> Original:
    """Return the version of an archive as a mirror sees it."""
    return Original(table.location, TOPIC, table.delta)


def check(mirror: Mirror, archive: LakeTable) -> None:
    """Compare the Iceberg table with the archive: files, and rows as DuckDB reads them."""
    table = mirror.table(TOPIC)
    assert {f"{archive.location.url}/{file.path}" for file in archive.files} == set(live_files(table))
    assert rows_of(Path(archive.location.path)) == rows_of_iceberg(table.metadata_location)
    assert table.scan().count() == len(rows_of(Path(archive.location.path)))


def operations(mirror: Mirror) -> list[str]:
    """Return the operations of the table's snapshots."""
    return [
        snapshot.summary.operation.value
        for snapshot in sorted(mirror.table(TOPIC).snapshots(), key=lambda each: each.sequence_number or 0)
        if snapshot.summary is not None
    ]


# --- Following the archive ---------------------------------------------------------------------------------


def test_each_change_of_an_archive_is_mirrored(open_mirror: Callable[[], Mirror], archive: LakeTable) -> None:
    mirror = open_mirror()
    assert mirror.update(original(archive)).change is Change.CREATED
    archive = grown(archive, 3)
    assert (3, 0) == (mirror.update(original(archive)).added, mirror.update(original(archive)).removed)
    archive = grown(archive, 3, key=b"ada")
    mirror.update(original(archive))
    check(mirror, archive)

    Compaction(archive, 10**8).run()
    archive = grown(archive.reopened())
    mirror.update(original(archive))
    check(mirror, archive)

    Erasure(archive, key_set([b"ada"])).run()
    archive = archive.reopened()
    mirror.update(original(archive))
    check(mirror, archive)
    drop_before(archive, {0: 65})
    archive = archive.reopened()
    mirror.update(original(archive))
    check(mirror, archive)

    assert ["append"] * 3 + ["replace", "append", "overwrite", "delete"] == operations(mirror)


def test_vacuum_keeps_the_files_that_the_iceberg_table_shows(
    open_mirror: Callable[[], Mirror], archive: LakeTable
) -> None:
    mirror = open_mirror()
    archive = grown(archive, 3)
    mirror.update(original(archive))
    shown = rows_of(Path(archive.location.path))
    Compaction(archive, 10**8).run()
    archive = grown(archive.reopened())

    assert [] == vacuum(archive, 0)

    assert shown == rows_of_iceberg(mirror.table(TOPIC).metadata_location)
    for _ in range(2):
        archive = grown(archive)
        mirror.update(original(archive))
    now_ms = time.time() * 1000
    newest = archive.version
    assert [3, newest - 1, newest] == shown_versions(archive, now_ms)  # a reader may have an earlier snapshot
    # The catalogue may have refused the newest one.
    assert [newest - 1, newest] == shown_versions(archive, now_ms + DAY_MS)


def test_vacuum_removes_nothing_if_the_iceberg_table_shows_a_version_that_the_log_lacks(
    open_mirror: Callable[[], Mirror], archive: LakeTable
) -> None:
    archive = grown(archive, 3)
    open_mirror().update(original(archive))
    archive = grown(archive)
    (Path(archive.location.path) / "_delta_log" / f"{3:020d}.json").unlink()

    with pytest.raises(MirrorUnknown, match="the log has no version 3, which the Iceberg table shows"):
        shown_versions(archive, time.time() * 1000)


def test_vacuum_removes_nothing_without_the_metadata_of_the_iceberg_table(archive: LakeTable) -> None:
    folder = Path(archive.location.path) / FOLDER / "metadata"
    folder.mkdir(parents=True)
    (folder / "snap-1.avro").touch()

    with pytest.raises(MirrorUnknown, match="_iceberg has no metadata of an Iceberg table"):
        vacuum(archive, 0)


def test_vacuum_does_not_look_at_a_mirror_of_another_table(
    open_mirror: Callable[[], Mirror], archive: LakeTable
) -> None:
    open_mirror().update(original(grown(archive)))
    path = Path(archive.location.path)
    (path / FOLDER).rename(path.parent / FOLDER)
    shutil.rmtree(path)
    again = LakeTable.open_or_create(Location.parse(str(path.parent)), TOPIC, TOPIC_ID)
    (path.parent / FOLDER).rename(path / FOLDER)

    assert [] == shown_versions(again, time.time() * 1000)


def test_mirror_that_is_in_step_commits_nothing(
    open_mirror: Callable[[], Mirror], archive: LakeTable
) -> None:
    mirror = open_mirror()
    archive = grown(archive)
    mirror.update(original(archive))
    before = mirror.table(TOPIC).metadata_location

    assert mirror.update(original(archive)).change is Change.NONE
    assert before == mirror.table(TOPIC).metadata_location


def test_readers_skip_files_by_the_bounds_of_offset_and_timestamp(
    open_mirror: Callable[[], Mirror], archive: LakeTable
) -> None:
    mirror = open_mirror()
    mirror.update(original(grown(archive, 6)))

    table = mirror.table(TOPIC)
    assert 6 == len(list(table.scan().plan_files()))
    assert 1 == len(list(table.scan(row_filter="offset >= 55").plan_files()))
    assert 2 == len(list(table.scan(row_filter="timestamp >= '2026-02-01T00:00:00+00:00'").plan_files()))


def test_readers_open_a_local_table_by_its_path(tmp_path: Path, archive: LakeTable) -> None:
    mirror = Mirror(catalogue(tmp_path, "path"), "korvet")
    archive = grown(archive, 2)
    mirror.update(original(archive))

    assert rows_of(Path(archive.location.path)) == rows_of_iceberg(f"{archive.location.path}/{FOLDER}")


def test_files_have_the_field_ids_of_the_table(tmp_path: Path, archive: LakeTable) -> None:
    mirror = Mirror(catalogue(tmp_path, "sql"), "korvet")
    archive = grown(archive)
    mirror.update(original(archive))

    found = pyarrow_to_schema(pq.read_schema(archive.absolute(archive.files[0])))

    assert mirror.table(TOPIC).schema().as_struct() == found.as_struct()


def test_removing_unreferenced_files_of_an_archive_leaves_the_mirror_alone(
    open_mirror: Callable[[], Mirror], archive: LakeTable
) -> None:
    mirror = open_mirror()
    archive = grown(archive, 3)
    mirror.update(original(archive))

    archive.delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    check(mirror, archive)


# --- Several mirrors, and faults ----------------------------------------------------------------------------


@define
class Faulty:
    """A catalogue whose next commits do what `faults` say, in turn."""

    catalogue: Any
    faults: list[Callable[[Callable[[], CommitTableResponse]], CommitTableResponse]] = field(factory=list)

    def load_table(self, identifier: tuple[str, str]) -> Table:
        table = self.catalogue.load_table(identifier)
        table.catalog = self
        return table

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        def commit() -> CommitTableResponse:
            return self.catalogue.commit_table(*arguments)

        return self.faults.pop(0)(commit) if self.faults else commit()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.catalogue, name)


def faulty(mirror: Mirror) -> tuple[Mirror, Faulty]:
    """Return the mirror on a catalogue that can fail."""
    catalogue = Faulty(mirror.catalog)
    return Mirror(catalogue, mirror.namespace), catalogue


def test_mirror_that_another_one_overtakes_compares_again(
    open_mirror: Callable[[], Mirror], archive: LakeTable
) -> None:
    archive = grown(archive, 2)
    open_mirror().update(original(archive))
    late, catalogue = faulty(open_mirror())
    newer = grown(archive, 2)

    def overtaken(commit: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        open_mirror().update(original(newer))
        return commit()

    catalogue.faults.append(overtaken)
    late.update(original(newer))

    check(open_mirror(), newer)


def test_mirror_of_an_older_version_does_not_bring_back_what_is_gone(
    open_mirror: Callable[[], Mirror], archive: LakeTable
) -> None:
    """The newer version has the files of the snapshot that the older one compares with: an empty snapshot fences it."""
    archive = grown(archive, 2)
    open_mirror().update(original(archive))
    older = grown(archive, 1, key=b"ada")
    Erasure(older, key_set([b"ada"])).run()
    newer = older.reopened()
    drop_before(newer, {0: 0})
    late, catalogue = faulty(open_mirror())

    def overtaken(commit: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        open_mirror().update(original(newer.reopened()))
        return commit()

    catalogue.faults.append(overtaken)
    late.update(original(older))

    check(open_mirror(), newer.reopened())


@pytest.mark.parametrize("retries", [0, 4])
def test_repeated_commits_of_pyiceberg_would_add_files_twice(
    retries: int, tmp_path: Path, archive: LakeTable
) -> None:
    """Keep `commit.retry.num-retries=0`: with a retry, an overtaken mirror adds its files on top of the other's."""
    archive = grown(archive, 2)
    mirror = Mirror(catalogue(tmp_path, "sql"), "korvet")
    mirror.update(original(archive))
    mirror.table(TOPIC).transaction().set_properties(
        {"commit.retry.num-retries": str(retries)}
    ).commit_transaction()
    newer = grown(archive, 2)
    late, faults = faulty(Mirror(catalogue(tmp_path, "sql"), "korvet"))

    def overtaken(commit: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        Mirror(catalogue(tmp_path, "sql"), "korvet").update(original(newer))
        return commit()

    faults.faults.append(overtaken)
    late.update(original(newer))

    assert (40 if retries == 0 else 60) == mirror.table(TOPIC).scan().count()


def test_commit_whose_answer_is_lost_is_found(open_mirror: Callable[[], Mirror], archive: LakeTable) -> None:
    archive = grown(archive, 2)
    mirror, catalogue = faulty(open_mirror())
    mirror.update(original(archive))
    archive = grown(archive, 2)

    def lost(commit: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        commit()
        raise CommitStateUnknownException("the answer was lost")

    catalogue.faults.append(lost)
    mirror.update(original(archive))

    check(open_mirror(), archive)
    assert ["append"] * 2 == operations(open_mirror())


def test_catalogue_that_refuses_is_reported(open_mirror: Callable[[], Mirror], archive: LakeTable) -> None:
    mirror, catalogue = faulty(open_mirror())
    mirror.update(original(archive))

    def refuse(_commit: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        raise CommitFailedException("no")

    catalogue.faults += [refuse] * 5
    with pytest.raises(CatalogueRefused, match=r"korvet\.orders: the catalogue refused 5 commits in a row"):
        mirror.update(original(grown(archive)))


KILLED = """
import os, sys
from pathlib import Path
from tests.lake.test_mirror import Faulty, Mirror, Original, catalogue, lake

def die(before):
    def fault(commit):
        if not before:
            commit()
        os._exit(9)
    return fault

folder, kind, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
broken = Faulty(catalogue(folder, kind), [die(when == "before")])
Mirror(broken, "korvet").update(Original.open(lake(folder), "orders"))
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_mirror_that_is_killed_at_its_commit_leaves_a_whole_table(
    kind: str, when: str, tmp_path: Path, archive: LakeTable
) -> None:
    mirror = Mirror(catalogue(tmp_path, kind), "korvet")
    mirror.update(original(archive))
    archive = grown(archive, 3)

    command = [sys.executable, "-c", KILLED, str(tmp_path), kind, when]
    assert 9 == subprocess.run(command, check=False).returncode

    mirror = Mirror(catalogue(tmp_path, kind), "korvet")
    done = mirror.update(original(archive))
    assert (Change.COMMITTED if when == "before" else Change.NONE) is done.change
    check(mirror, archive)


def test_store_that_speaks_s3_holds_mirrored_tables(tmp_path: Path) -> None:
    with s3_store(conditional=True) as options:
        place = Location.parse("s3://lake/tables", options)
        archive = LakeTable.open_or_create(place, TOPIC, TOPIC_ID)
        archive = archive.commit([written(archive, 0, 10)])
        catalogue = open_catalogue(place, None, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalogue.db"})
        mirror = Mirror(catalogue, "korvet")

        assert 1 == mirror.update(original(archive)).added

        rows = mirror.table(TOPIC).scan().to_arrow()
        assert list(range(10)) == sorted(rows.column("offset").to_pylist())


# --- Tables that are no mirrors -----------------------------------------------------------------------------


def test_foreign_snapshot_is_noticed_and_rebuilt(
    open_mirror: Callable[[], Mirror], archive: LakeTable
) -> None:
    mirror = open_mirror()
    archive = grown(archive)
    mirror.update(original(archive))
    table = mirror.table(TOPIC)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass  # a snapshot without a file

    with pytest.raises(
        Diverged, match=r"another program has written snapshot \d+ to korvet\.orders; --rebuild"
    ):
        mirror.update(original(grown(archive)))
    mirror.rebuild(original(archive.reopened()))

    check(mirror, archive.reopened())


def test_mirror_of_a_newer_version_than_the_archive_has_is_noticed(
    open_mirror: Callable[[], Mirror], archive: LakeTable
) -> None:
    """The archive was restored from an older copy."""
    mirror = open_mirror()
    newer = grown(archive, 2)
    mirror.update(original(newer))
    (Path(archive.location.path) / "_delta_log" / f"{newer.version:020d}.json").unlink()
    restored = LakeTable.open(lake(Path(archive.location.path).parents[1]), TOPIC)

    with pytest.raises(Diverged, match=r"shows version 2 of .*, whose newest version is 1"):
        mirror.update(original(restored))


def test_mirror_of_another_archive_is_refused(tmp_path: Path, archive: LakeTable) -> None:
    mirror = Mirror(catalogue(tmp_path, "sql"), "korvet")
    mirror.update(original(archive))
    other = LakeTable.open_or_create(lake(tmp_path / "other"), TOPIC, TOPIC_ID)

    with pytest.raises(Diverged, match=r"korvet\.orders mirrors another table than .*/other/lake/orders"):
        mirror.update(original(other))


def test_foreign_table_is_refused(tmp_path: Path, archive: LakeTable) -> None:
    sql = catalogue(tmp_path, "sql")
    sql.create_namespace("korvet")
    sql.create_table(NAME, pa.schema([("a", pa.int64())]))

    with pytest.raises(Diverged, match=r"no mirror of korvet's; choose --namespace"):
        Mirror(sql, "korvet").update(original(archive))


def test_fault_of_one_table_leaves_the_others_alone(tmp_path: Path) -> None:
    archives = [LakeTable.open_or_create(lake(tmp_path), topic, TOPIC_ID) for topic in ("a", "b")]
    sql = catalogue(tmp_path, "sql")
    sql.create_namespace("korvet")
    sql.create_table(("korvet", "a"), pa.schema([("a", pa.int64())]))
    rounds = Rounds(Mirror(sql, "korvet"), lake(tmp_path), timedelta(days=1), tables=lambda: ["a", "b", "c"])

    outcomes = rounds.round()

    assert "no mirror of korvet's" in (outcomes["a"].error or "")
    assert (archives[1].version, None) == (outcomes["b"].version, outcomes["b"].error)
    assert "There is no Delta table" in (outcomes["c"].error or "")


def test_catalogue_that_is_away_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(NoCatalogue, match=r"^the catalogue korvet cannot be opened: ConnectionError: .+$"):
        open_catalogue(lake(tmp_path), None, {"type": "rest", "uri": "http://127.0.0.1:1"})
    with pytest.raises(NoCatalogue, match=r"^the catalogue other cannot be opened: .+$"):
        open_catalogue(lake(tmp_path), "other", {"type": "nonsense"})


def test_store_without_a_catalogue_is_refused() -> None:
    with pytest.raises(InvalidLocation, match="need a catalogue; name one with --catalog"):
        open_catalogue(Location.parse("s3://lake/tables"), None, {})


# --- Upkeep -------------------------------------------------------------------------------------------------


def test_old_snapshots_expire_and_orphans_go(open_mirror: Callable[[], Mirror], archive: LakeTable) -> None:
    mirror = open_mirror()
    for _ in range(SLACK + 2):
        archive = grown(archive)
        mirror.update(original(archive))
    table, now = mirror.table(TOPIC), datetime.now(UTC)
    keep = timedelta(days=1)

    assert 0 == expire(table, keep, now)
    assert SLACK + 1 == expire(table, keep, now + timedelta(days=2))
    place = archive.location.child(FOLDER)
    assert 0 == remove_orphans(mirror.table(TOPIC), place, now)
    assert 0 < remove_orphans(mirror.table(TOPIC), place, now + timedelta(days=2))

    assert 1 == len(mirror.table(TOPIC).snapshots()) < KEPT
    check(mirror, archive)
    archive = grown(archive)
    mirror.update(original(archive))
    check(mirror, archive)


def test_dropped_tables_keep_the_archive(open_mirror: Callable[[], Mirror], archive: LakeTable) -> None:
    mirror = open_mirror()
    archive = grown(archive)
    mirror.update(original(archive))

    mirror.catalog.drop_table(NAME)

    with pytest.raises(NoSuchTableError):
        mirror.table(TOPIC)
    assert 10 == len(rows_of(Path(archive.location.path)))
    mirror.update(original(archive))
    check(mirror, archive)
