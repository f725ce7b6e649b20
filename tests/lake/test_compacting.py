from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from korvet.cli.lake.compact import command
from korvet.lake import compacting
from korvet.lake.chain import Stretch, chained_up_to, missing_stretches
from korvet.lake.compacting import Compaction, groups_of
from korvet.lake.errors import CommitConflict, Unreachable
from korvet.lake.file_writing import ROW_GROUP_ROWS
from korvet.lake.files import ArchivedRange
from korvet.lake.remote import ColdReader
from korvet.lake.replacing import replace
from korvet.lake.retention import drop_before, expired_up_to
from korvet.lake.table import Gap, LakeTable
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
    assert compaction.run().errors == []
    after = compaction.table
    assert (rows_of(folder(after)), numbers(folder(after)), chained_up_to(after, 0), after.gaps) == before
    assert groups_of(after, target_bytes) == []
    return after


def names(table: LakeTable) -> list[tuple[int, int, int, int, str | None]]:
    """Return start, end, piece, pieces and date of the files."""
    found = [(f.held.start, f.held.end, f.held.piece, f.held.pieces, f.date) for f in table.files if f.held]
    assert len(found) == len(table.files)
    return sorted(found, key=str)


def test_a_days_small_files_become_one_in_the_order_of_their_offsets(table: LakeTable) -> None:
    table = compacted(archived(table, *[[0]] * 12))

    assert names(table) == [(0, 120, 1, 1, "2026-01-31")]
    assert pq.read_table(table.absolute(table.files[0]))["offset"].to_pylist() == list(range(120))


def test_each_date_and_no_date_have_a_file_of_their_own(table: LakeTable) -> None:
    table = compacted(archived(table, [0, 1, None], [1, 0], [None, 1]))

    assert names(table) == [
        (0, 30, 1, 3, None),
        (0, 30, 2, 3, "2026-01-31"),
        (0, 30, 3, 3, "2026-02-01"),
    ]


def test_ranges_are_joined_within_a_day_so_that_they_can_grow_old(table: LakeTable) -> None:
    table = compacted(archived(table, [0], [0], [1], [1, 0], [0], [1], [2], [2]))

    assert names(table) == [
        (0, 20, 1, 1, "2026-01-31"),
        (20, 60, 1, 2, "2026-01-31"),
        (20, 60, 2, 2, "2026-02-01"),
        (60, 80, 1, 1, "2026-02-02"),
    ]
    assert expired_up_to(table, NOON + DAY_MS) == {0: 20}
    table = drop_before(table, {0: 20})
    assert (table.start(0), chained_up_to(table, 0), missing_stretches(table, 0)) == (20, 80, [])


def test_files_grow_up_to_the_target_and_no_further(table: LakeTable) -> None:
    table = archived(table, *[[0]] * 30, size=500)
    size = table.files[0].size

    table = compacted(table, 10 * size)

    assert len(table.files) < 10
    assert max(file.size for file in table.files) <= 10 * size


def test_row_groups_are_as_the_archive_makes_them(table: LakeTable) -> None:
    table = compacted(archived(table, *[[0]] * 3, size=7_000))

    metadata = pq.read_metadata(table.absolute(table.files[0]))
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [
        ROW_GROUP_ROWS,
        ROW_GROUP_ROWS,
        21_000 - 2 * ROW_GROUP_ROWS,
    ]


def test_a_large_file_is_not_written_again_for_a_small_one(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "LEFT_BYTES", 1)
    monkeypatch.setattr(compacting, "LEFT_FACTOR", 2)
    table = compacted(archived(table, *[[0]] * 2, size=20_000))
    table = compacted(archived(table, *[[0]] * 3))

    assert names(table) == [(0, 40_000, 1, 1, "2026-01-31"), (40_000, 40_030, 1, 1, "2026-01-31")]


def test_many_dates_in_a_batch_become_a_file_each(table: LakeTable) -> None:
    table = compacted(archived(table, list(range(60)), list(range(60)), size=120))

    assert len(table.files) == 60
    assert {file.count for file in table.files} == {4}


def test_ranges_without_records_and_accepted_gaps_are_passed_over(table: LakeTable) -> None:
    table = archived(table, [0])
    table = table.commit([ArchivedRange(0, 10, 15)], [Gap(0, 15, 30)])
    table = compacted(archived(table, [0], [0]))

    assert names(table) == [(0, 50, 1, 1, "2026-01-31")]


def test_what_was_lost_stays_missing(table: LakeTable) -> None:
    table = archived(table, [0], [0], [1], [0], [0])
    table.delta.delete("date = '2026-02-01'")
    table = compacted(table.reopened())

    assert missing_stretches(table, 0) == [Stretch(20, 30)]
    assert len(table.files) == 2


def test_files_that_somebody_else_has_written_are_left_alone(table: LakeTable) -> None:
    table = archived(table, [0], [0])
    table.delta.optimize.compact()
    table = compacted(archived(table.reopened(), [0], [0]))

    assert sorted(file.held is None for file in table.files) == [False, True]


def test_what_is_on_the_old_snapshot_can_be_read_until_a_vacuum(table: LakeTable, tmp_path: Path) -> None:
    table = archived(table, *[[0, 1]] * 5)
    reader = ColdReader(lake(tmp_path))
    before = reader.read(TOPIC, TOPIC_ID, 0, 0, 50, MB)
    after = compacted(table)

    assert reader.read(TOPIC, TOPIC_ID, 0, 0, 50, MB) == before
    after.delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    cold = ColdReader(lake(tmp_path))
    cold._tables[TOPIC, TOPIC_ID] = table
    assert cold.read(TOPIC, TOPIC_ID, 0, 0, 50, MB) == before


def test_records_that_are_not_those_that_were_committed_are_not_joined(table: LakeTable) -> None:
    table = archived(table, [0], [0], [1], [1])
    other = LakeTable.open_or_create(lake(folder(table).parent.parent / "other"), TOPIC, TOPIC_ID)
    wrong = archived(other, [0], [5])
    Path(table.absolute(table.files[0])).write_bytes(Path(wrong.absolute(wrong.files[0])).read_bytes())
    first = min(file.path for file in table.files)
    source = pq.read_table(f"{folder(table)}/{first}", partitioning=None)
    pq.write_table(source.slice(1), f"{folder(table)}/{first}")

    compaction = Compaction(table)
    result = compaction.run()

    assert len(result.errors) == 1
    assert "offsets 0 to 19 of partition 0 are not the records that were committed" in result.errors[0]
    assert [name[:2] for name in names(compaction.table)] == [(0, 10), (10, 20), (20, 40)]


# --- Concurrent writers -----------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named_and_all_others_are_joined(table: LakeTable) -> None:
    table = archived(table, [0], [0], [1], [1], [2], [2])
    (lost,) = table.files_of(0, 20, 30)
    Path(table.absolute(lost)).unlink()

    compaction = Compaction(table)
    done = compaction.run()

    assert done.errors == [f"{table.location}/{lost.path} is not there."]
    assert names(compaction.table) == [
        (0, 20, 1, 1, "2026-01-31"),
        (20, 30, 1, 1, "2026-02-01"),
        (30, 40, 1, 1, "2026-02-01"),
        (40, 60, 1, 1, "2026-02-02"),
    ]


def test_an_archivers_commit_in_between_costs_neither_anything(table: LakeTable) -> None:
    table = archived(table, [0], [0])
    compaction = Compaction(table)
    newer = archived(table, [0])
    compaction.run()
    stale = newer.commit([written(newer, 30, 40)])

    assert (stale.archived_up_to, chained_up_to(stale, 0)) == ({0: 40}, 40)
    assert [row.offset for row in rows_of(folder(table))] == list(range(40))
    assert [name[:2] for name in names(stale)] == [(0, 20), (20, 30), (30, 40)]


def test_of_two_who_replace_the_same_files_one_does(table: LakeTable) -> None:
    table = archived(table, [0], [0])
    first, second = table.reopened(), table.reopened()
    Compaction(first).run()

    with pytest.raises(CommitConflict, match="another writer replaced"):
        replace(second, second.files, [], data_change=False)
    Compaction(second).run()
    assert [row.offset for row in rows_of(folder(table))] == list(range(20))


def test_who_loses_the_race_begins_anew_with_what_there_is(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archived(table, [0], [0])

    def beaten(*arguments: Any, **options: Any) -> LakeTable:
        monkeypatch.setattr(compacting, "replace", replace)
        Compaction(table.reopened()).run()
        return replace(*arguments, **options)

    monkeypatch.setattr(compacting, "replace", beaten)
    result = Compaction(table).run()

    assert (result.files_before, result.errors) == (0, [])
    assert names(table.reopened()) == [(0, 20, 1, 1, "2026-01-31")]


def test_a_commit_whose_answer_is_lost_is_not_made_twice(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archived(table, [0], [0])
    rival = table.reopened()
    compaction = Compaction(table)
    taken = LakeTable.reopened

    def once(self: LakeTable) -> LakeTable:
        monkeypatch.setattr(LakeTable, "reopened", taken)
        raise CommitConflict("the line is dead")

    monkeypatch.setattr(LakeTable, "reopened", once)
    compaction.run()

    assert [row.offset for row in rows_of(folder(rival))] == list(range(20))
    assert groups_of(rival.reopened(), MB) == []


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
def test_killed_at_any_step_nothing_is_lost_or_doubled(table: LakeTable, tmp_path: Path, step: str) -> None:
    archived(table, [0, 1], [0], [1])
    before = rows_of(folder(table))

    process = PROCESSES.Process(target=killed, args=(tmp_path, step))
    process.start()
    process.join(60)

    assert process.exitcode == -signal.SIGKILL
    assert rows_of(folder(table)) == before
    assert (len(live_files(folder(table))) < 4) == (step == "after commit")
    compacted(table.reopened())


# --- The command ------------------------------------------------------------------------------------------


def test_the_command_says_what_it_did_and_a_dry_run_what_it_would(table: LakeTable, tmp_path: Path) -> None:
    archived(table, [0], [0], [0])
    run = CliRunner().invoke
    arguments = ["--at", str(tmp_path / "lake")]

    dry, done, again = (run(command, [*arguments, *more]).output for more in (["--dry-run"], [], []))

    assert dry.startswith("orders: 3 files of ")
    assert dry.endswith("would become 1\n")
    assert done.startswith("orders: 3 files of ")
    assert again == "orders: nothing to join\n"
    wrong = run(command, [*arguments, "--target-bytes", "many"])
    assert "'many' is no size; accepted are 128MB, 1GB, 500kB, 1000000." in wrong.output


def test_the_command_says_what_was_committed_before_it_failed(
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
    result = CliRunner().invoke(command, ["--at", str(tmp_path / "lake")])

    assert result.exit_code == 1
    assert result.stdout.startswith("orders: 2 files of ")
    assert " became 1 of " in result.stdout
    assert "korvet: the store refuses.\n" in result.stderr


def test_the_command_names_what_is_damaged_and_exits_with_1(table: LakeTable, tmp_path: Path) -> None:
    table = archived(table, [0], [0])
    path = Path(table.absolute(table.files[0]))
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)

    result = CliRunner().invoke(command, ["--at", str(tmp_path / "lake")])

    assert result.exit_code == 1
    assert f"{table.files[0].path} is damaged" in result.output
    assert len(live_files(folder(table))) == 2
