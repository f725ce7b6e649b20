"""All operations on a table in any order; DuckDB reads its log, and its Iceberg mirror, and finds a model's rows."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from korvet.lake import compacting, erasing
from korvet.lake.chain import chained_up_to, missing_stretches
from korvet.lake.compacting import Compaction, groups_of
from korvet.lake.erasing import Erasure, erased_places, key_set
from korvet.lake.errors import CommitConflict
from korvet.lake.file_writing import RangeWriter
from korvet.lake.files import ArchivedRange
from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.mirrored import FOLDER
from korvet.lake.retention import drop_before, expired_up_to
from korvet.lake.schema import DAY_MS, HEADERS, archive_table
from korvet.lake.table import Gap, LakeTable
from korvet.pipeline.archive_status import audit_table
from tests.lake.iceberg_reading import rows_of_iceberg
from tests.lake.replay import Row, live_files, rows_of
from tests.lake.support import NOON, TOPIC, TOPIC_ID, lake

PARTITIONS = st.integers(0, 1)
KEYS = st.sampled_from([None, b"ada", b"bob", b"eve"])
DAYS = st.sampled_from([0, 0, 0, 1, 2, None])
TARGETS = st.sampled_from([2_000, 5_000, 100_000_000])
# For each record: the offsets skipped before it, its key, its day.
RECORDS = st.lists(st.tuples(st.integers(0, 3), KEYS, DAYS), max_size=8)


def archived_range(
    table: LakeTable, partition: int, records: list[tuple[int, bytes | None, int | None]], tail: int
) -> tuple[ArchivedRange, list[Row]]:
    """Write a range, to be committed. Return it with its rows."""
    start = table.archived_up_to.get(partition, 0)
    offset = start - 1
    rows = []
    for skipped, key, day in records:
        offset += 1 + skipped
        timestamp = -(2**62) if day is None else NOON + day * DAY_MS
        rows.append(Row(TOPIC, partition, offset, timestamp, key, b"value %d" % offset, ()))
    content = archive_table(
        TOPIC,
        partition,
        np.array([row.offset for row in rows], np.int64),
        np.array([row.timestamp_ms for row in rows], np.int64),
        np.zeros(len(rows), np.int32),
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.nulls(len(rows), HEADERS),
    )
    covered = table.covered(partition)
    writer = RangeWriter(table.location, partition, start if covered is None else covered)
    return writer.write(content, start, offset + 1 + tail), rows


class Upkeep(RuleBasedStateMachine):
    """Archives, compacts, erases and retains, also on snapshots that are outdated."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.place = lake(Path(self.folder.name))
        LakeTable.open_or_create(self.place, TOPIC, TOPIC_ID)
        self.rows: list[Row] = []
        self.erased: set[tuple[int, int]] = set()
        self.erased_is_known = True
        self.old = self.newest()

    def teardown(self) -> None:
        self.folder.cleanup()

    def newest(self) -> LakeTable:
        return LakeTable.open(self.place, TOPIC)

    @rule(partition=PARTITIONS, records=RECORDS, tail=st.integers(0, 3))
    def archive(self, partition: int, records: list[tuple[int, bytes | None, int | None]], tail: int) -> None:
        table = self.newest()
        written, rows = archived_range(table, partition, records, tail)
        table.commit([written])
        self.rows += rows

    @rule(partition=PARTITIONS, length=st.integers(1, 5))
    def accept_gap(self, partition: int, length: int) -> None:
        table = self.newest()
        start = table.archived_up_to.get(partition)
        if start is not None:
            table.commit([], [Gap(partition, start, start + length)])

    @rule()
    def take_snapshot(self) -> None:
        self.old = self.newest()

    @rule(target_bytes=TARGETS)
    def compact(self, target_bytes: int) -> None:
        compaction = Compaction(self.newest(), target_bytes)
        assert [] == compaction.run().errors
        assert [] == groups_of(compaction.table, target_bytes)

    @rule(target_bytes=TARGETS)
    def compact_old_snapshot(self, target_bytes: int) -> None:
        Compaction(self.old, target_bytes).run()

    @rule(key=KEYS.filter(bool))
    def erase(self, key: bytes) -> None:
        self.erase_from(self.newest(), key)

    @rule(key=KEYS.filter(bool))
    def erase_from_old_snapshot(self, key: bytes) -> None:
        self.erase_from(self.old, key)

    def erase_from(self, table: LakeTable, key: bytes) -> None:
        erasure = Erasure(table, key_set([key]))
        assert [] == erasure.run().errors
        gone = [row for row in self.rows if row.key == key]
        assert len(gone) == sum(erasure.done.counts().values())
        self.erased |= {(row.partition, row.offset) for row in gone}
        self.rows = [row for row in self.rows if row.key != key]

    @rule(days=st.integers(1, 3), is_old=st.booleans())
    def retain(self, days: int, is_old: bool) -> None:
        table = self.old if is_old else self.newest()
        starts = expired_up_to(table, NOON + days * DAY_MS)
        if not starts:
            return
        try:
            drop_before(table, starts)
        except CommitConflict:
            assert is_old
            return
        dropped = [row for row in self.rows if row.offset < starts.get(row.partition, 0)]
        assert all(0 <= row.timestamp_ms < NOON + days * DAY_MS for row in dropped)
        self.rows = [row for row in self.rows if row.offset >= starts.get(row.partition, 0)]
        self.erased = {place for place in self.erased if place[1] >= starts.get(place[0], 0)}

    @rule()
    def foreign_optimize(self) -> None:
        if self.newest().delta.optimize.compact()["numFilesRemoved"]:
            self.erased_is_known = False  # files of another writer do not state it

    @rule()
    def mirror(self) -> None:
        Mirror(PathCatalog(self.place, FOLDER), "korvet").update(Original.open(self.place, TOPIC))
        path = Path(self.newest().location.path)
        assert rows_of(path) == rows_of_iceberg(f"{path}/{FOLDER}")

    @precondition(lambda self: self.rows)
    @rule()
    def vacuum(self) -> None:
        self.newest().delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    @invariant()
    def table_matches_the_model(self) -> None:
        table = self.newest()
        expected = sorted(self.rows, key=lambda row: (row.partition, row.offset))
        assert expected == rows_of(Path(table.location.path))
        for partition, number in table.archived_up_to.items():
            assert (chained_up_to(table, partition), missing_stretches(table, partition)) == (number, [])
        assert [] == audit_table(table, checksums=True)
        places = {
            (partition, at) for partition, offsets in erased_places(table).items() for at in offsets.tolist()
        }
        assert places <= self.erased if not self.erased_is_known else places == self.erased


@pytest.mark.slow
def test_table_matches_the_model_after_any_sequence_of_maintenance() -> None:
    run_state_machine_as_test(
        Upkeep,
        settings=settings(
            max_examples=12,
            stateful_step_count=15,
            phases=[Phase.explicit, Phase.generate],  # shrinking a failure would take minutes
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


# --- Concurrently -----------------------------------------------------------------------------------------


@contextmanager
def archiving(place: Path, rows: list[Row]) -> Iterator[threading.Event]:
    """Commit one range after the other in a thread until the block ends; set the event after the third."""
    ended, begun = threading.Event(), threading.Event()

    def archive() -> None:
        commits = 0
        while not ended.is_set():
            table = LakeTable.open(lake(place), TOPIC)
            written, some = archived_range(table, 0, [(0, b"ada", 0), (1, b"bob", 1), (0, None, 0)], 1)
            try:
                table.commit([written])
            except CommitConflict:
                continue
            rows.extend(some)
            commits += 1
            if commits == 3:
                begun.set()

    thread = threading.Thread(target=archive)
    thread.start()
    try:
        yield begun
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_compactions_and_an_erasure_run_beside_an_archiver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "COMMIT_BYTES", 1)
    monkeypatch.setattr(erasing, "COMMIT_BYTES", 1)
    LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)
    rows: list[Row] = []
    failures: list[Exception] = []

    def upkeep(what: type[Compaction | Erasure]) -> None:
        table = LakeTable.open(lake(tmp_path), TOPIC)
        try:
            job = Compaction(table, 20_000) if what is Compaction else Erasure(table, key_set([b"ada"]))
            job.run()
        except CommitConflict as error:
            failures.append(error)

    with archiving(tmp_path, rows) as begun:
        assert begun.wait(60)
        threads = [
            threading.Thread(target=upkeep, args=(what,)) for what in (Compaction, Compaction, Erasure)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table = LakeTable.open(lake(tmp_path), TOPIC)
    Compaction(table).run()
    erasure = Erasure(table.reopened(), key_set([b"ada"]))
    erasure.run()

    assert [row for row in rows if row.key != b"ada"] == rows_of(Path(table.location.path))
    assert ([], []) == (audit_table(erasure.table, checksums=True), missing_stretches(erasure.table, 0))
    assert len(live_files(Path(table.location.path))) <= 4
    assert [] == failures
