from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from korvet.cli.lake.compact import command
from korvet.lake import compacting
from korvet.lake.chain import Stretch, chained_up_to, missing_stretches
from korvet.lake.compacting import (
    CLASS_BYTES,
    CLASS_RANGES,
    Compaction,
    HeldRange,
    below,
    groups_by_class,
    groups_of,
)
from korvet.lake.errors import CommitConflict, Unreachable
from korvet.lake.file_writing import ROW_GROUP_ROWS, FileWriter
from korvet.lake.files import ArchivedRange, DataFile
from korvet.lake.remote import RemoteReader
from korvet.lake.replacing import replace
from korvet.lake.retention import drop_before, expired_up_to
from korvet.lake.retrying import ATTEMPTS
from korvet.lake.table import Gap, LakeTable
from korvet.lake.table_files import TableFile
from tests.lake.replay import live_files, numbers, rows_of
from tests.lake.support import DAY_MS, NOON, TOPIC, TOPIC_ID, lake, written

MB = 1_000_000


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)


def folder(table: LakeTable) -> Path:
    return Path(table.location.path)


def archived(table: LakeTable, *days: Sequence[int | None], size: int = 10) -> LakeTable:
    """Return the table with a range for each of `days`; its records have these days in turn, None for no date."""
    for chosen in days:
        start = table.archived_up_to.get(0, 0)
        picked = [chosen[index % len(chosen)] for index in range(size)]
        timestamps = [-(2**62) if day is None else NOON + DAY_MS * day for day in picked]
        table = table.commit([written(table, start, start + size, timestamps=timestamps)])
    return table


def compacted(table: LakeTable, target_bytes: int = 100 * MB) -> LakeTable:
    """Compact a table, check that only its files changed and that a second run finds nothing, and return it."""
    before = rows_of(folder(table)), numbers(folder(table)), chained_up_to(table, 0), table.gaps
    compaction = Compaction(table, target_bytes)
    assert [] == compaction.run().errors
    after = compaction.table
    assert (rows_of(folder(after)), numbers(folder(after)), chained_up_to(after, 0), after.gaps) == before
    assert [] == groups_of(after, target_bytes)
    return after


def names(table: LakeTable) -> list[tuple[int, int, int, int, str | None]]:
    """Return start, end, piece, pieces and date of the files."""
    found = [(f.held.start, f.held.end, f.held.piece, f.held.pieces, f.date) for f in table.files if f.held]
    assert len(table.files) == len(found)
    return sorted(found, key=str)


def test_small_files_of_a_day_are_joined_in_offset_order(table: LakeTable) -> None:
    table = compacted(archived(table, *[[0]] * 12))

    assert [(0, 120, 1, 1, "2026-01-31")] == names(table)
    assert list(range(120)) == pq.read_table(table.absolute(table.files[0]))["offset"].to_pylist()


def test_each_date_and_undated_rows_get_separate_files(table: LakeTable) -> None:
    table = compacted(archived(table, [0, 1, None], [1, 0], [None, 1]))

    assert [
        (0, 30, 1, 3, None),
        (0, 30, 2, 3, "2026-01-31"),
        (0, 30, 3, 3, "2026-02-01"),
    ] == names(table)


def test_ranges_are_joined_within_a_day_so_that_they_expire_by_day(table: LakeTable) -> None:
    table = compacted(archived(table, [0], [0], [1], [1, 0], [0], [1], [2], [2]))

    assert [
        (0, 20, 1, 1, "2026-01-31"),
        (20, 60, 1, 2, "2026-01-31"),
        (20, 60, 2, 2, "2026-02-01"),
        (60, 80, 1, 1, "2026-02-02"),
    ] == names(table)
    assert {0: 20} == expired_up_to(table, NOON + DAY_MS)
    table = drop_before(table, {0: 20})
    assert (20, 80, []) == (table.start(0), chained_up_to(table, 0), missing_stretches(table, 0))


def test_files_grow_up_to_the_target_size(table: LakeTable) -> None:
    table = archived(table, *[[0]] * 30, size=500)
    size = table.files[0].size

    table = compacted(table, 10 * size)

    assert len(table.files) < 10
    assert max(file.size for file in table.files) <= 10 * size


def test_compacted_row_groups_have_the_size_of_archived_ones(table: LakeTable) -> None:
    table = compacted(archived(table, *[[0]] * 3, size=7_000))

    metadata = pq.read_metadata(table.absolute(table.files[0]))
    assert [
        ROW_GROUP_ROWS,
        ROW_GROUP_ROWS,
        21_000 - 2 * ROW_GROUP_ROWS,
    ] == [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def test_large_file_is_not_rewritten_to_join_a_small_one(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "LEFT_BYTES", 1)
    monkeypatch.setattr(compacting, "LEFT_FACTOR", 2)
    table = compacted(archived(table, *[[0]] * 2, size=20_000))
    table = compacted(archived(table, *[[0]] * 3))

    assert [(0, 40_000, 1, 1, "2026-01-31"), (40_000, 40_030, 1, 1, "2026-01-31")] == names(table)


def test_batch_with_many_dates_becomes_a_file_for_each_date(table: LakeTable) -> None:
    table = compacted(archived(table, list(range(60)), list(range(60)), size=120))

    assert 60 == len(table.files)
    assert {4} == {file.count for file in table.files}


def test_compaction_spans_ranges_without_records_and_accepted_gaps(table: LakeTable) -> None:
    table = archived(table, [0])
    table = table.commit([ArchivedRange(0, 10, 15)], [Gap(0, 15, 30)])
    table = compacted(archived(table, [0], [0]))

    assert [(0, 50, 1, 1, "2026-01-31")] == names(table)


def test_compaction_keeps_lost_ranges_missing(table: LakeTable) -> None:
    table = archived(table, [0], [0], [1], [0], [0])
    table.delta.delete("date = '2026-02-01'")
    table = compacted(table.reopened())

    assert [Stretch(20, 30)] == missing_stretches(table, 0)
    assert 2 == len(table.files)


def test_compaction_ignores_files_of_another_writer(table: LakeTable) -> None:
    table = archived(table, [0], [0])
    table.delta.optimize.compact()
    table = compacted(archived(table.reopened(), [0], [0]))

    assert [False, True] == sorted(file.held is None for file in table.files)


def test_old_snapshot_is_readable_until_a_vacuum(table: LakeTable, tmp_path: Path) -> None:
    table = archived(table, *[[0, 1]] * 5)
    reader = RemoteReader(lake(tmp_path))
    before = reader.read(TOPIC, TOPIC_ID, 0, 0, 50, MB)
    after = compacted(table)

    assert before == reader.read(TOPIC, TOPIC_ID, 0, 0, 50, MB)
    after.delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    remote = RemoteReader(lake(tmp_path))
    remote._tables[TOPIC, TOPIC_ID] = table
    assert before == remote.read(TOPIC, TOPIC_ID, 0, 0, 50, MB)


def test_compaction_refuses_records_that_differ_from_the_committed_ones(table: LakeTable) -> None:
    table = archived(table, [0], [0], [1], [1])
    other = LakeTable.open_or_create(lake(folder(table).parent.parent / "other"), TOPIC, TOPIC_ID)
    wrong = archived(other, [0], [5])
    Path(table.absolute(table.files[0])).write_bytes(Path(wrong.absolute(wrong.files[0])).read_bytes())
    first = min(file.path for file in table.files)
    source = pq.read_table(f"{folder(table)}/{first}", partitioning=None)
    pq.write_table(source.slice(1), f"{folder(table)}/{first}")

    compaction = Compaction(table)
    result = compaction.run()

    assert 1 == len(result.errors)
    assert "offsets 0 to 19 of partition 0 are not the committed records" in result.errors[0]
    assert [(0, 10), (10, 20), (20, 40)] == [name[:2] for name in names(compaction.table)]


# --- Concurrent writers -----------------------------------------------------------------------------------


def test_missing_file_is_reported_and_other_files_are_joined(table: LakeTable) -> None:
    table = archived(table, [0], [0], [1], [1], [2], [2])
    (lost,) = table.files_of(0, 20, 30)
    Path(table.absolute(lost)).unlink()

    compaction = Compaction(table)
    done = compaction.run()

    assert [f"{table.location}/{lost.path} is not there."] == done.errors
    assert [
        (0, 20, 1, 1, "2026-01-31"),
        (20, 30, 1, 1, "2026-02-01"),
        (30, 40, 1, 1, "2026-02-01"),
        (40, 60, 1, 1, "2026-02-02"),
    ] == names(compaction.table)


def test_compaction_and_a_concurrent_archiver_commit_both_succeed(table: LakeTable) -> None:
    table = archived(table, [0], [0])
    compaction = Compaction(table)
    newer = archived(table, [0])
    compaction.run()
    stale = newer.commit([written(newer, 30, 40)])

    assert ({0: 40}, 40) == (stale.archived_up_to, chained_up_to(stale, 0))
    assert list(range(40)) == [row.offset for row in rows_of(folder(table))]
    assert [(0, 20), (20, 30), (30, 40)] == [name[:2] for name in names(stale)]


def test_second_of_two_replacements_of_the_same_files_conflicts(table: LakeTable) -> None:
    table = archived(table, [0], [0])
    first, second = table.reopened(), table.reopened()
    Compaction(first).run()

    with pytest.raises(CommitConflict, match="another writer replaced"):
        replace(second, second.files, [], data_change=False)
    Compaction(second).run()
    assert list(range(20)) == [row.offset for row in rows_of(folder(table))]


def test_compaction_that_loses_a_race_restarts_from_the_new_snapshot(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archived(table, [0], [0])

    def lose_race(*arguments: Any, **options: Any) -> LakeTable:
        monkeypatch.setattr(compacting, "replace", replace)
        Compaction(table.reopened()).run()
        return replace(*arguments, **options)

    monkeypatch.setattr(compacting, "replace", lose_race)
    result = Compaction(table).run()

    assert (0, []) == (result.files_before, result.errors)
    assert [(0, 20, 1, 1, "2026-01-31")] == names(table.reopened())


def test_commit_with_a_lost_response_is_not_repeated(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archived(table, [0], [0])
    rival = table.reopened()
    compaction = Compaction(table)
    taken = LakeTable.following

    def once(self: LakeTable) -> LakeTable:
        monkeypatch.setattr(LakeTable, "following", taken)
        raise CommitConflict("the line is dead")

    monkeypatch.setattr(LakeTable, "following", once)
    compaction.run()

    assert list(range(20)) == [row.offset for row in rows_of(folder(rival))]
    assert [] == groups_of(rival.reopened(), MB)


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


def die(*_arguments: object, **_options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_afterwards(*arguments: Any, **options: Any) -> None:
    replace(*arguments, **options)
    die()


def killed(place: Path, step: str) -> None:
    """Compact, and kill this process at a step."""
    compaction = Compaction(LakeTable.open(lake(place), TOPIC))
    if step == "writing":
        compaction.on_progress = die
    else:
        vars(compacting)["replace"] = die if step == "before commit" else die_afterwards
    compaction.run()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["writing", "before commit", "after commit"])
def test_compaction_killed_at_any_step_loses_and_duplicates_no_record(
    table: LakeTable, tmp_path: Path, step: str
) -> None:
    archived(table, [0, 1], [0], [1])
    before = rows_of(folder(table))

    process = PROCESSES.Process(target=killed, args=(tmp_path, step))
    process.start()
    process.join(60)

    assert -signal.SIGKILL == process.exitcode
    assert before == rows_of(folder(table))
    assert (step == "after commit") == (len(live_files(folder(table))) < 4)
    compacted(table.reopened())


# --- The command ------------------------------------------------------------------------------------------


def test_command_prints_joined_files_and_dry_run_prints_the_plan(table: LakeTable, tmp_path: Path) -> None:
    archived(table, [0], [0], [0])
    run = CliRunner().invoke
    arguments = ["--lake", str(tmp_path / "lake")]

    dry, done, again = (run(command, [*arguments, *more]).output for more in (["--dry-run"], [], []))

    assert dry.startswith("orders: 3 files of ")
    assert dry.endswith("would become 1\n")
    assert done.startswith("orders: 3 files of ")
    assert "orders: nothing to join\n" == again
    wrong = run(command, [*arguments, "--target-bytes", "many"])
    assert "'many' is not a size; accepted: 128MB, 1GB, 500kB, 1000000." in wrong.output


def test_command_prints_commits_made_before_a_failure(
    table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived(table, [0], [0], [1], [1])
    monkeypatch.setattr("korvet.lake.compacting.COMMIT_BYTES", 1)

    def once(*arguments: Any, **options: Any) -> LakeTable:
        monkeypatch.setattr("korvet.lake.compacting.replace", refused)
        return replace(*arguments, **options)

    def refused(*_arguments: Any, **_options: Any) -> LakeTable:
        raise Unreachable("the store refuses.")

    monkeypatch.setattr("korvet.lake.compacting.replace", once)
    result = CliRunner().invoke(command, ["--lake", str(tmp_path / "lake")])

    assert 1 == result.exit_code
    assert result.stdout.startswith("orders: 2 files of ")
    assert " became 1 of " in result.stdout
    assert "korvet: the store refuses.\n" in result.stderr


def test_command_names_a_damaged_file_and_exits_with_1(table: LakeTable, tmp_path: Path) -> None:
    table = archived(table, [0], [0])
    path = Path(table.absolute(table.files[0]))
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)

    result = CliRunner().invoke(command, ["--lake", str(tmp_path / "lake")])

    assert 1 == result.exit_code
    assert f"{table.files[0].path} is damaged" in result.output
    assert 2 == len(live_files(folder(table)))


def test_ranges_of_one_size_class_are_joined_when_there_are_enough(table: LakeTable) -> None:
    table = archived(table, *([[0]] * (CLASS_RANGES - 1)))
    assert [] == groups_by_class(table, 100 * MB)
    table = archived(table, [0], [0])
    before = rows_of(folder(table))

    compaction = Compaction(table, find=groups_by_class)
    compaction.run()

    assert 2 == len(live_files(folder(table)))
    assert before == rows_of(folder(table))


@given(
    sizes=st.lists(
        st.one_of(st.integers(100_000, 2 * MB), st.integers(100_000, 70 * MB)), min_size=1, max_size=400
    )
)
def test_each_commit_leaves_few_small_ranges_that_are_rewritten_a_few_times(sizes: list[int]) -> None:
    """Join after each append, and count the ranges below a size that are side by side, and rewrites."""
    ranges: list[tuple[int, int]] = []  # sizes and rewrites
    for size in sizes:
        ranges.append((size, 0))
        while joins := first_joins(ranges):
            for start in reversed(joins):
                several = ranges[start : start + CLASS_RANGES]
                joined = sum(each for each, _ in several), 1 + max(rewrites for _, rewrites in several)
                ranges[start : start + CLASS_RANGES] = [joined]
        for limit in CLASS_BYTES:
            longest = max(len([*each]) if small else 0 for small, each in by_smallness(ranges, limit))
            assert longest < CLASS_RANGES
    assert max(rewrites for _, rewrites in ranges) <= 3


def first_joins(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Return where the runs of ranges to join start, by the module's rule."""
    held = [HeldRange(0, index, index + 1, sized(size)) for index, (size, _) in enumerate(ranges)]
    found = next(filter(None, (below(held, limit) for limit in CLASS_BYTES)), [])
    return [each[0].start for each in found]


def sized(size: int) -> tuple[TableFile, ...]:
    return (TableFile("", size, None, 1, 0, 0, 0, 0, 0, None),)


def by_smallness(
    ranges: Sequence[tuple[int, int]], limit: int
) -> Iterator[tuple[bool, Iterator[tuple[int, int]]]]:
    return groupby(ranges, key=lambda each: each[0] < limit)


LOST = "Generic MicrosoftAzure error: InvalidBlockList: The specified block list is invalid."


@pytest.mark.parametrize("failures, left", [(2, 1), (ATTEMPTS, 3)])
def test_file_whose_last_answer_was_lost_is_written_again_with_another_name(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch, failures: int, left: int
) -> None:
    table = archived(table, [0], [0], [0])
    before = rows_of(folder(table))
    closed: list[str] = []

    def lose(writer: FileWriter, metadata: Any = None) -> DataFile:
        closed.append(writer.path)
        if len(closed) <= failures:
            raise OSError(LOST)
        return close(writer, metadata)

    close = FileWriter.close
    monkeypatch.setattr(FileWriter, "close", lose)
    monkeypatch.setattr("korvet.lake.retrying.FIRST_BACKOFF_S", 0.0)
    with (
        nullcontext()
        if left == 1
        else pytest.raises(Unreachable, match=re.escape(f"{table.location}: {LOST}"))
    ):
        Compaction(table).run()

    assert left == len(live_files(folder(table)))
    assert len(closed) == len({*closed})
    assert before == rows_of(folder(table))
