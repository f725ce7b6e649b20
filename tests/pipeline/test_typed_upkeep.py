"""Upkeep of typed and dlq tables: joins, retention, vacuum, audit. DuckDB finds the rows of a model in their files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from attrs import field, frozen
from click.testing import CliRunner, Result
from deltalake import TableFeatures, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from korvet.cli.lake.audit import command as audit_command
from korvet.cli.lake.compact import command as compact_command
from korvet.cli.lake.vacuum import command as vacuum_command
from korvet.lake.compacting import CLASS_BYTES, CLASS_RANGES
from korvet.lake.erasing import Erasure, key_set
from korvet.lake.erasing_decoded import DecodedErasure
from korvet.lake.errors import CommitConflict, LakeError, NewerFormat
from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.mirrored import FOLDER
from korvet.lake.schema import Int64s
from korvet.lake.table import LakeTable
from korvet.pipeline.archive_status import Finding
from korvet.pipeline.decoding.auditing import audit_decoded, compared
from korvet.pipeline.decoding.expiring import drop_before
from korvet.pipeline.decoding.joining import DecodedJoins, groups_by_class, groups_of
from korvet.pipeline.decoding.tables import DecodedFile, DecodedTable
from tests.lake.iceberg_reading import reading
from tests.lake.replay import live_files
from tests.pipeline.decoding import DAY_MS, START_MS, Lake

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
MB = 1_000_000


def typed(lake: Lake, name: str = "orders") -> DecodedTable:
    return DecodedTable.found(lake.location("typed").child(name))


def joined(lake: Lake, name: str = "orders") -> DecodedTable:
    """Join the files of a table, and return the new snapshot."""
    joins = DecodedJoins(typed(lake, name))
    assert [] == joins.run().errors
    return joins.table


def grown(lake: Lake, *batches: Sequence[Any], **settings: Any) -> None:
    """Archive and decode each batch in a separate round."""
    for values in batches:
        lake.archive(values)
        lake.decode(**settings)


def read(lake: Lake, columns: str, name: str = "orders") -> list[tuple[Any, ...]]:
    """Return rows as DuckDB reads them from the files that the log has."""
    files = live_files(lake.folder / "typed" / name)
    with duckdb.connect() as connection:
        query = f"select {columns} from read_parquet(?, hive_partitioning = false, union_by_name = true) order by all"
        return connection.execute(query, [files]).fetchall()


# --- Which files are joined ---------------------------------------------------------------------------------


@frozen
class Files:
    """A table that has files, and nothing else."""

    files: list[DecodedFile] = field(factory=list)
    cluster_by: tuple[str, ...] = ()


def sized(number: int, size: int) -> DecodedFile:
    return DecodedFile(str(number), size, number, 1, {}, {}, {})


@settings(deadline=None)
@given(
    sizes=st.lists(
        st.one_of(st.integers(100_000, 2 * MB), st.integers(100_000, 70 * MB)), min_size=1, max_size=400
    )
)
def test_each_commit_leaves_few_small_files_that_are_rewritten_a_few_times(sizes: list[int]) -> None:
    """Join after each append, and count the files below a size, and rewrites."""
    files: dict[str, tuple[DecodedFile, int]] = {}  # with rewrites
    for number, size in enumerate(sizes):
        files[str(number)] = (sized(number, size), 0)
        joins = 0
        while groups := groups_by_class(Files([file for file, _ in files.values()]), 0):  # type: ignore[arg-type]
            for group in groups:
                several = [files.pop(file.path) for file in group.files]
                made = sized(number, sum(file.size for file, _ in several))
                name = f"{number}+{joins}"
                joins += 1
                made = DecodedFile(name, made.size, number, 1, {}, {}, {})
                files[name] = made, 1 + max(rewrites for _, rewrites in several)
        for limit in CLASS_BYTES:
            assert sum(file.size < limit for file, _ in files.values()) < CLASS_RANGES
    assert max(rewrites for _, rewrites in files.values()) <= 3


def test_large_file_is_not_rewritten_to_join_a_small_one() -> None:
    files = [sized(0, 100 * MB), sized(1, 1000), sized(2, 1000)]

    (group,) = groups_of(Files(files), 128 * MB)  # type: ignore[arg-type]

    assert ("1", "2") == tuple(file.path for file in group.files)


def test_files_above_the_target_are_left() -> None:
    assert [] == groups_of(Files([sized(0, 2000), sized(1, 2000)]), 1000)  # type: ignore[arg-type]


# --- Rows stay ----------------------------------------------------------------------------------------------


def test_files_of_several_schemas_become_one_with_all_columns(lake: Lake) -> None:
    grown(
        lake, [{"id": 1, "box": {"x": 1}}], [{"id": 2, "box": {"x": 2, "y": "b"}}], [{"id": 3, "more": [1.5]}]
    )
    before = lake.rows()

    table = joined(lake)

    assert 1 == len(table.files)
    assert before == lake.rows()
    assert [(1, 1, None, None), (2, 2, "b", None), (3, None, None, [1.5])] == read(
        lake, "id, box.x, box.y, more"
    )
    grown(lake, [{"id": 4, "again": True}])
    assert [1, 2, 3, 4] == lake.values("id")
    assert {0: 4} == typed(lake).decoded_up_to


def test_each_partition_of_a_table_has_files_of_its_own(lake: Lake) -> None:
    values = [{"id": number, "item": item} for number, item in enumerate(["nut", "bolt/å", None, "nut"])]
    grown(lake, *[values] * 3, partition_by=["item"])
    before = lake.rows()

    table = joined(lake)

    assert ["bolt/å", "nut", None] == sorted(
        (file.partition_values["item"] for file in table.files), key=lambda item: (item is None, item)
    )
    assert before == lake.rows()


def test_dlq_table_is_joined(lake: Lake) -> None:
    grown(lake, [b"{"], [b"["], [b"x"])
    before = lake.bad()

    table = joined(lake, "orders~dlq")

    assert (1, before) == (len(table.files), lake.bad())
    assert [(0,), (1,), (2,)] == read(lake, '"offset"', "orders~dlq")


def upserted(lake: Lake) -> None:
    """Make an upsert table with three keys in three files, and archive a changed and a new key."""
    for key in ("a", "b", "c"):
        lake.archive([{"n": 1}], keys=[key])
        lake.decode(upsert=True)
    lake.archive([{"n": 2}, {"n": 2}], keys=["a", "d"])
    assert 3 == len(typed(lake).files)


MERGED = [(1, "b"), (1, "c"), (2, "a"), (2, "d")]


def test_merge_into_files_that_are_joined_meanwhile_starts_again(lake: Lake) -> None:
    upserted(lake)
    decoding = lake.decoding(upsert=True)

    def join(step: str) -> None:
        if step == "between commits":
            joined(lake)

    decoding.on_step = join
    with pytest.raises(CommitConflict):
        decoding.round()
    assert [(1, "a"), (1, "b"), (1, "c")] == read(lake, "n, decode(_key)")
    lake.decode(upsert=True)

    assert MERGED == read(lake, "n, decode(_key)")


def test_join_of_files_that_are_merged_meanwhile_starts_again(lake: Lake) -> None:
    upserted(lake)
    steps = []

    def merge(step: str) -> None:
        steps.append(step)
        if step == "before commit" and steps.count(step) == 1:
            lake.decode(upsert=True)

    DecodedJoins(typed(lake), on_step=merge).run()

    assert ["join", "before commit", "join", "before commit", "after commit"] == steps
    assert MERGED == read(lake, "n, decode(_key)")
    assert 1 == len(typed(lake).files)


def test_rows_erased_during_a_join_stay_erased(lake: Lake) -> None:
    grown(lake, [{"id": 1}, {"id": 2}], [{"id": 3}], [{"id": 4}])
    places: dict[int, Int64s] = {0: typed_offsets(1)}
    erasure = DecodedErasure(typed(lake).location, "orders", places)

    def erase(step: str) -> None:
        if step == "before commit":
            erasure.run()

    DecodedJoins(typed(lake), on_step=erase).run()

    assert [1, 3, 4] == lake.values("id")


def typed_offsets(*offsets: int) -> Int64s:
    return np.array(offsets, np.int64)


def test_damaged_file_is_named_and_left(lake: Lake) -> None:
    grown(lake, [{"id": 1}], [{"id": 2}])
    table = typed(lake)
    path = Path(table.absolute(table.files[0]))
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)

    done = DecodedJoins(table).run()

    assert 2 == len(typed(lake).files)
    (error,) = done.errors
    assert f"{path} is damaged" in error


def test_table_with_deletion_vectors_is_refused_in_one_line(lake: Lake) -> None:
    grown(lake, [{"id": 1}], [{"id": 2}])
    table = typed(lake)
    table.delta.alter.set_table_properties({"delta.enableDeletionVectors": "true"}, raise_if_not_exists=False)
    table.delta.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)

    for work in (lambda: DecodedJoins(typed(lake)).run(), lambda: drop_before(typed(lake), START_MS)):
        with pytest.raises(NewerFormat, match="has deletion vectors, which another writer made") as caught:
            work()
        assert 1 == len(str(caught.value).splitlines())


# --- Kills --------------------------------------------------------------------------------------------------


def join_until_killed(lake: Lake, step: str) -> None:
    """Join in this process, and kill it (SIGKILL) at a step."""
    DecodedJoins(
        typed(lake), on_step=lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == step else None
    ).run()


@pytest.mark.slow
@pytest.mark.parametrize("step, files", [("join", 4), ("before commit", 4), ("after commit", 1)])
def test_killed_join_has_joined_all_or_nothing(lake: Lake, step: str, files: int) -> None:
    grown(lake, *[[{"id": number}, b"{"] for number in range(4)])
    before = lake.rows()
    process = PROCESSES.Process(target=join_until_killed, args=(lake, step))
    process.start()
    process.join()

    assert -signal.SIGKILL == process.exitcode
    assert (files, before) == (len(typed(lake).files), lake.rows())
    assert 1 == len(joined(lake).files)
    assert before == lake.rows()
    assert [] == audit_decoded(typed(lake), "orders", checksums=True)


# --- Retention ----------------------------------------------------------------------------------------------


def test_expired_rows_are_dropped_and_not_decoded_again(lake: Lake) -> None:
    for day in range(4):
        lake.archive([{"day": day}, b"{"], timestamps_ms=[START_MS + day * DAY_MS] * 2)
        lake.decode()
    lake.archive([{"day": None}], timestamps_ms=[-(2**62)])
    lake.decode()
    joined(lake)

    dropped = drop_before(typed(lake), START_MS + 2 * DAY_MS)
    again = drop_before(dropped, START_MS + 2 * DAY_MS)
    drop_before(typed(lake, "orders~dlq"), START_MS + 2 * DAY_MS)
    grown(lake, [{"day": 9}])

    assert dropped.version == again.version
    assert [2, 3, None, 9] == lake.values("day")
    assert [5, 7] == list(lake.bad())
    assert [] == audit_decoded(typed(lake), "orders", checksums=True)


def test_age_beyond_1970_drops_nothing(lake: Lake) -> None:
    lake.archive([{"id": 1}], timestamps_ms=[-DAY_MS])
    lake.decode()

    drop_before(typed(lake), -5)

    assert [1] == lake.values("id")


# --- Audit --------------------------------------------------------------------------------------------------


def whats(lake: Lake, **how: bool) -> list[str]:
    return [str(each) for each in audit_decoded(typed(lake), "orders", **how)]


def compared_with_archive(lake: Lake) -> list[Finding]:
    """Return the differences between the archive and the rows of both tables."""
    dlq = typed(lake, "orders~dlq") if (lake.folder / "typed" / "orders~dlq").exists() else None
    archive = LakeTable.open(lake.location("raw"), "orders")
    return list(compared(typed(lake), dlq, archive, "orders"))


@pytest.mark.parametrize("on_error", ["dlq", "skip"])
@pytest.mark.parametrize("partition_by", [(), ("days",)])
def test_audit_finds_archived_records_without_a_row_and_rows_without_a_record(
    lake: Lake, on_error: str, partition_by: tuple[str, ...]
) -> None:
    decode = {"on_error": on_error, "partition_by": partition_by}
    grown(lake, [{"id": 1}, b"{", None], **decode)
    lake.archive([{"id": 2}, None, {"id": 3}], keys=["a", "b", "c"])
    lake.decode(**decode)
    assert [] == compared_with_archive(lake)

    typed(lake).delta.delete("id = 2")
    Erasure(LakeTable.open(lake.location("raw"), "orders"), key_set([b"c"])).run()

    erased, lost = compared_with_archive(lake)
    assert "orders-0 offsets 5 to 5: 1 rows are of records that the archive does not have" == str(erased)
    expected = "2 to 4: 3 archived records have no row, and 2 were skipped"
    if on_error == "skip":
        expected = "1 to 4: 4 archived records have no row, and 3 were skipped"
    assert f"orders-0 offsets {expected}" == str(lost)


def test_audit_compares_chosen_topics_with_the_archive(lake: Lake) -> None:
    grown(lake, [{"id": 1}, b"{", None, {"id": 2}])
    words = ("--topics", "orders", "--archive", str(lake.folder / "raw"))
    sound = run(audit_command, lake, *words)
    typed(lake).delta.delete("id = 2")

    faulty = run(audit_command, lake, *words)

    assert (0, "orders: 2 rows, as written, in 1 files\n") == (sound.exit_code, sound.output)
    assert 1 == faulty.exit_code
    finding = "orders-0 offsets 2 to 3: 2 archived records have no row, and 1 were skipped"
    assert [finding, "orders: 1 rows, 1 findings"] == faulty.output.splitlines()


def test_audit_finds_lost_and_shortened_files(lake: Lake) -> None:
    grown(lake, [{"id": 1}], [{"id": 2}])
    table = typed(lake)
    first, second = (Path(table.absolute(file)) for file in table.files)
    assert [] == whats(lake)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])

    lost, shortened = whats(lake)

    assert f"orders-0 offsets 0 to 0: {first} is not there" == lost
    assert f"orders-0 offsets 1 to 1: {second} has " in shortened


def test_audit_finds_repeated_rows_and_rows_that_were_not_decoded(lake: Lake) -> None:
    grown(lake, [{"id": 1}, {"id": 2}])
    table = typed(lake)
    rows = table.delta.to_pyarrow_table()
    write_deltalake(table.location.url, rows.slice(0, 1), mode="append")
    index = rows.schema.get_field_index("_offset")
    other = rows.slice(0, 1).set_column(index, rows.schema.field("_offset"), pa.array([7], pa.int64()))
    write_deltalake(table.location.url, other, mode="append")

    assert [] == whats(lake)
    assert [
        "orders-0 offsets 0 to 0: 1 rows are in the table more than once",
        "orders-0 offsets 7 to 7: 1 rows are not of the decoded offsets, 0 to 1",
    ] == whats(lake, checksums=True)


def test_audit_finds_offsets_of_no_commit(lake: Lake) -> None:
    grown(lake, [{"id": 1}], [{"id": 2}], [{"id": 3}])
    log = sorted((lake.folder / "typed" / "orders" / "_delta_log").glob("*.json"))
    text = log[-2].read_text()
    log[-2].write_text(text.replace("[[0,1,2]]", "[]").replace('"korvet.ranges":"', '"korvet.ranged":"'))

    assert ["orders-0 offsets 1 to 1: no commit contains them"] == whats(lake)


# --- The mirror ---------------------------------------------------------------------------------------------


def operation(lake: Lake) -> str:
    """Mirror the typed table, and return the operation of its newest snapshot."""
    mirror = Mirror(PathCatalog(lake.location("typed"), FOLDER), "korvet")
    mirror.update(Original.open(lake.location("typed"), "orders"))
    snapshot = mirror.table("orders").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot.summary.operation.value


def mirrored_ids(lake: Lake) -> list[int]:
    found = reading(f"{lake.folder}/typed/orders/{FOLDER}", "select id from {table} order by id")
    return [row[0] for row in found]  # type: ignore[misc]


def test_mirror_follows_joins_as_moved_rows(lake: Lake) -> None:
    grown(lake, [{"id": 1}], [{"id": 2}])
    operation(lake)
    joined(lake)
    assert ("replace", [1, 2]) == (operation(lake), mirrored_ids(lake))

    grown(lake, [{"id": 3}])
    joined(lake)  # with a row that was not mirrored yet
    assert ("overwrite", [1, 2, 3]) == (operation(lake), mirrored_ids(lake))

    grown(lake, [{"id": 4}])
    operation(lake)
    joined(lake)
    grown(lake, [{"id": 5}])
    assert ("append", [1, 2, 3, 4, 5]) == (operation(lake), mirrored_ids(lake))


def test_mirror_follows_optimize_of_another_program_as_moved_rows(lake: Lake) -> None:
    grown(lake, [{"id": 1}], [{"id": 2}])
    operation(lake)
    typed(lake).delta.optimize.compact()
    grown(lake, [{"id": 3}])

    assert ("append", [1, 2, 3]) == (operation(lake), mirrored_ids(lake))
    snapshots = Mirror(PathCatalog(lake.location("typed"), FOLDER), "korvet").table("orders").snapshots()
    operations = [each.summary.operation.value for each in snapshots if each.summary is not None]
    assert ["append", "replace", "append"] == operations


def test_mirror_of_merged_and_joined_rows_is_an_overwrite(lake: Lake) -> None:
    for value in range(2):
        lake.archive([{"id": value}], keys=[f"k{value}"])
        lake.decode(upsert=True)
    operation(lake)
    lake.archive([{"id": 7}], keys=["k1"])
    lake.decode(upsert=True)
    joined(lake)

    assert ("overwrite", [0, 7]) == (operation(lake), mirrored_ids(lake))


# --- Commands -----------------------------------------------------------------------------------------------


def run(command: Any, lake: Lake, *more: str) -> Result:
    return CliRunner().invoke(command, ["--lake", str(lake.folder / "typed"), *more])


@pytest.mark.slow
def test_commands_look_after_typed_tables(lake: Lake) -> None:
    grown(lake, [{"id": 1}, b"{"], [{"id": 2}, b"["])
    write_deltalake(lake.location("typed").child("foreign").url, lake.table().select(["id"]))

    dry = run(compact_command, lake, "--dry-run").output
    done = run(compact_command, lake)
    again = run(compact_command, lake).output
    audited = run(audit_command, lake, "--checksums")  # no broker is asked
    orders = lake.folder / "typed" / "orders"
    left_behind = orders / "killed.parquet"
    left_behind.touch()
    os.utime(left_behind, (0, 0))
    removed = run(vacuum_command, lake, "--topics", "orders").output

    assert ["orders: 2 files of ", "orders~dlq: 2 files of "] == [
        line.partition("of ")[0] + "of " for line in dry.splitlines()
    ]
    assert (0, 2) == (done.exit_code, done.output.count("became 1 of"))
    assert "orders: nothing to join\norders~dlq: nothing to join\n" == again
    assert (0, "orders: 2 rows, as written, in 1 files\norders~dlq: 2 rows, as written, in 1 files\n") == (
        audited.exit_code, audited.output,
    )  # fmt: skip
    assert "orders: 1 files were removed\n" == removed
    assert 3 == len([*orders.glob("*.parquet")])  # readers may still need the replaced ones
    assert [1, 2] == lake.values("id")


def test_foreign_table_is_refused_in_one_line(lake: Lake) -> None:
    write_deltalake(lake.location("typed").child("foreign").url, pa.table({"a": [1]}))

    outcome = run(compact_command, lake, "--topics", "foreign")

    assert 1 == outcome.exit_code
    assert "is a Delta table, but no archive of korvet's" in outcome.output


# --- Everything in any order --------------------------------------------------------------------------------


VALUES = st.tuples(st.one_of(st.none(), st.integers(0, 99)), st.integers(0, 5))


class Upkeep(RuleBasedStateMachine):
    """Decode, join, expire, erase and vacuum in any order; the rows are those of a model."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="ku-")
        self.lake = Lake(Path(self._folder.name))
        self.rows: dict[int, tuple[int, int]] = {}  # by offset: id, day
        self.bad: set[int] = set()
        self.erased: dict[int, int] = {}  # by offset: day
        self.offset = 0

    def teardown(self) -> None:
        self._folder.cleanup()

    @rule(
        values=st.lists(
            st.tuples(st.one_of(st.none(), st.integers(0, 99)), st.integers(0, 5)), min_size=1, max_size=5
        )
    )
    def decode(self, values: list[tuple[int | None, int]]) -> None:
        """Decode a batch. An id of None is a bad row; the day decides which columns a row has."""
        self.lake.archive(
            [
                b"{" if each is None else {"id": each, f"c{day % 3}": {f"n{day}": each}}
                for each, day in values
            ],
            timestamps_ms=[START_MS + day * DAY_MS for _, day in values],
        )
        self.lake.decode()
        for each, day in values:
            if each is None:
                self.bad.add(self.offset)
            else:
                self.rows[self.offset] = each, day
            self.offset += 1

    def table(self, name: str = "orders") -> DecodedTable | None:
        try:
            return typed(self.lake, name)
        except LakeError:
            return None

    @rule(name=st.sampled_from(["orders", "orders~dlq"]), size=st.sampled_from([3_000, 8_000, 10**9]))
    def join(self, name: str, size: int) -> None:
        table = self.table(name)
        if table is not None:
            assert [] == DecodedJoins(table, size).run().errors

    @rule(day=st.integers(0, 3))
    def expire(self, day: int) -> None:
        table = self.table()
        if table is not None:
            drop_before(table, START_MS + day * DAY_MS)
            self.rows = {offset: row for offset, row in self.rows.items() if row[1] >= day}

    @rule(offset=st.integers(0, 40))
    def erase(self, offset: int) -> None:
        table = self.table()
        if table is not None:
            DecodedErasure(table.location, "orders", {0: typed_offsets(offset)}).run()
            if offset in self.rows:
                self.erased[offset] = self.rows.pop(offset)[1]

    @rule()
    def vacuum(self) -> None:
        table = self.table()
        if table is not None:
            table.delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    @invariant()
    def has_the_rows(self) -> None:
        if self.table() is None:
            return
        expected = [(each, 0, offset) for offset, (each, _) in self.rows.items()]
        found = (
            read(self.lake, "id, _partition, _offset")
            if live_files(self.lake.folder / "typed/orders")
            else []
        )
        assert sorted(expected) == found
        assert {0: self.offset} == typed(self.lake).decoded_up_to
        assert self.bad == {*self.lake.bad()}
        assert [] == audit_decoded(typed(self.lake), "orders", checksums=True)
        # The rows were erased here, but not in the archive.
        dropped_ms = typed(self.lake).dropped_ms
        missing = sum(START_MS + day * DAY_MS >= dropped_ms for day in self.erased.values())
        what = [f"{missing} archived records have no row, and 0 were skipped"] if missing else []
        assert what == [each.what for each in compared_with_archive(self.lake)]


@pytest.mark.slow
def test_rows_stay_whatever_is_done_to_a_table() -> None:
    run_state_machine_as_test(
        Upkeep,
        settings=settings(
            max_examples=12, stateful_step_count=14, deadline=None, suppress_health_check=[*HealthCheck]
        ),
    )
