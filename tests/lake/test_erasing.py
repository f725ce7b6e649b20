from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from attrs import evolve
from click.testing import CliRunner

from korvet.cli.lake.erase import command
from korvet.lake import erasing
from korvet.lake.chain import chained_up_to, missing_stretches
from korvet.lake.compacting import Compaction
from korvet.lake.erasing import Erasure, erased_count, erased_places, key_set, old_files, record_count, remove
from korvet.lake.errors import Unreachable
from korvet.lake.file_writing import RangeWriter
from korvet.lake.files import ArchivedRange
from korvet.lake.remote import RemoteReader
from korvet.lake.replacing import replace
from korvet.lake.retention import expired_up_to
from korvet.lake.schema import HEADERS, archive_table
from korvet.lake.table import LakeTable
from korvet.pipeline.archive_status import audit_table
from tests.lake.replay import live_files, numbers, rows_of
from tests.lake.support import DAY_MS, NOON, TOPIC, TOPIC_ID, lake

MB = 1_000_000
ADA = key_set([b"ada"])


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)


def folder(table: LakeTable) -> Path:
    return Path(table.location.path)


def keyed(
    table: LakeTable, keys: Sequence[str | None], *, days: Sequence[int] = (0,), partition: int = 0
) -> Any:
    """Write a range, to be committed, with a record for each key; their days take turns."""
    start = table.archived_up_to.get(partition, 0)
    offsets = np.arange(start, start + len(keys))
    covered = table.covered(partition)
    rows = archive_table(
        TOPIC,
        partition,
        offsets,
        np.array([NOON + DAY_MS * days[index % len(days)] for index in range(len(keys))]),
        np.zeros(len(keys), np.int32),
        pa.array([None if key is None else key.encode() for key in keys], pa.binary()),
        pa.array([f"value {offset}".encode() for offset in offsets], pa.binary()),
        pa.nulls(len(keys), HEADERS),
    )
    writer = RangeWriter(table.location, partition, start if covered is None else covered)
    return writer.write(rows, start, start + len(keys))


def archived(table: LakeTable, *keys: Sequence[str | None], days: Sequence[int] = (0,)) -> LakeTable:
    for each in keys:
        table = table.commit([keyed(table, each, days=days)])
    return table


def erased(table: LakeTable, keys: pa.Array = ADA) -> LakeTable:
    """Erase keys, check that other rows are unchanged and that audits find no fault, and return the table."""
    wanted = [row for row in rows_of(folder(table)) if row.key not in keys.to_pylist()]
    before = numbers(folder(table)), chained_up_to(table, 0), len(live_files(folder(table)))
    erasure = Erasure(table, keys)
    assert [] == erasure.run().errors
    after = erasure.table
    assert wanted == rows_of(folder(after))
    assert (numbers(folder(after)), chained_up_to(after, 0), len(live_files(folder(after)))) == before
    assert [] == audit_table(after, checksums=True)
    return after


def test_erasure_removes_the_records_of_a_key_and_keeps_the_chain(table: LakeTable) -> None:
    table = archived(table, ["ada", "bob", None, "ada"], ["bob", "bob"], ["ada"], days=(0, 1))
    after = erased(table)

    assert [] == missing_stretches(after, 0)
    assert 3 == erased_count(after)
    assert [[0, 3, 6]] == [places.tolist() for places in erased_places(after).values()]


def test_erasure_does_not_rewrite_files_without_the_key(table: LakeTable) -> None:
    table = archived(table, ["bob"], ["ada", "bob"])
    bobs = [file.path for file in table.files if file.held and file.held.start == 0]
    after = erased(table)
    version = after.version

    assert [file.path for file in after.files if file.held and file.held.start == 0] == bobs
    assert version == erased(after).version


def test_remote_reads_skip_erased_records(table: LakeTable, tmp_path: Path) -> None:
    table = archived(table, ["ada", "bob"], ["ada", "ada"], ["ada", "bob"])
    erased(table)
    reader = RemoteReader(lake(tmp_path))

    first = reader.first(TOPIC, TOPIC_ID, 0, 2, 6)
    assert first is not None
    assert 5 == first.offset
    assert (b"", 5) == reader.read(TOPIC, TOPIC_ID, 0, 2, 5, MB)


def test_erasure_of_several_keys_in_several_partitions(table: LakeTable) -> None:
    table = table.commit([keyed(table, ["ada", "bob"]), keyed(table, ["eve", "ada", "bob"], partition=1)])
    after = erased(table, key_set([b"ada", b"eve", b"nobody"]))

    assert {
        0: [0],
        1: [0, 1],
    } == {partition: places.tolist() for partition, places in erased_places(after).items()}


def test_erased_offsets_survive_compaction_and_another_erasure(table: LakeTable) -> None:
    table = erased(archived(table, ["ada", "bob"], ["bob", "ada"], ["ada"]))
    compaction = Compaction(table)
    compaction.run()
    after = compaction.table

    assert 1 == len(after.files)
    assert (3, [0, 3, 4]) == (erased_count(after), erased_places(after)[0].tolist())
    assert [] == audit_table(after, checksums=True)
    again = erased(after, key_set([b"bob"]))
    assert (5, 0) == (erased_count(again), again.files[0].count)


def test_erasure_rewrites_files_of_another_writer(table: LakeTable) -> None:
    table = table.commit([keyed(table, ["ada", "bob"]), keyed(table, ["bob", "ada", "bob"], partition=1)])
    table = archived(table, ["ada", "bob", "ada"])
    table.delta.optimize.compact()
    after = erased(table.reopened())

    places = {partition: offsets.tolist() for partition, offsets in erased_places(after).items()}
    assert {0: [0, 2, 4], 1: [1]} == places
    assert all(file.held is None for file in after.files)
    assert ([], []) == (missing_stretches(after, 0), missing_stretches(after, 1))


def test_audit_counts_all_files_of_a_partly_optimized_range(
    table: LakeTable,
) -> None:
    table = archived(table, ["ada", "bob", "eve"], ["ada", "bob"], days=(0, 1))
    table.delta.optimize.compact(partition_filters=[("date", "=", "2026-01-31")])
    table = table.reopened()

    assert [False, False, True] == sorted(file.held is None for file in table.files)
    assert [] == audit_table(table, checksums=True)


def test_all_records_of_foreign_files_can_be_erased(table: LakeTable) -> None:
    table = table.commit([keyed(table, ["ada"]), keyed(table, ["bob", "ada"], partition=1)])
    table = archived(table, ["ada"])
    table.delta.optimize.compact()
    after = erased(erased(table.reopened()), key_set([b"bob"]))

    assert ([], []) == (missing_stretches(after, 0), missing_stretches(after, 1))


def test_fully_erased_range_expires_with_its_neighbours(table: LakeTable) -> None:
    table = erased(archived(table, ["ada"], ["bob"], ["ada", "ada"]))

    assert {0: 4} == expired_up_to(table, NOON + DAY_MS)
    assert {0: 1} == expired_up_to(table, NOON)


def test_audit_reports_erased_rows_that_a_restore_brought_back(table: LakeTable) -> None:
    table = archived(table, ["ada", "bob"], ["bob"])
    version = table.version
    after = erased(table)
    after.delta.restore(version)

    findings = audit_table(after.reopened(), checksums=True)
    assert [
        (0, 2, "2 rows, where 1 were committed"),
        (0, 2, "1 records were committed, and 2 are in the files"),
    ] == [(each.start, each.end, each.what) for each in findings]


def test_erasure_succeeds_beside_an_archiver_and_a_compaction(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archived(table, ["ada", "bob"], ["bob", "ada"])

    def lose_race(*arguments: Any, **options: Any) -> LakeTable:
        monkeypatch.setattr(erasing, "replace", replace)
        Compaction(archived(table.reopened(), ["ada", "eve"])).run()
        return replace(*arguments, **options)

    monkeypatch.setattr(erasing, "replace", lose_race)
    Erasure(table, ADA).run()

    after = table.reopened()
    assert [b"bob", b"bob", b"eve"] == [row.key for row in rows_of(folder(table))]
    assert (6, []) == (chained_up_to(after, 0), audit_table(after, checksums=True))


def test_two_concurrent_erasures_of_one_range_are_both_counted(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archived(table, ["ada", "bob", "ada", "bob"], days=(0, 1))

    def lose_race(*arguments: Any, **options: Any) -> LakeTable:
        monkeypatch.setattr(erasing, "replace", replace)
        Erasure(table.reopened(), key_set([b"bob"])).run()
        return replace(*arguments, **options)

    monkeypatch.setattr(erasing, "replace", lose_race)
    Erasure(table, ADA).run()

    after = table.reopened()
    assert [] == rows_of(folder(table))
    assert (4, []) == (erased_count(after), audit_table(after, checksums=True))


# --- Old files --------------------------------------------------------------------------------------------


def test_old_files_with_erased_records_are_found_and_removed(table: LakeTable) -> None:
    table = archived(table, ["bob"], ["ada", "bob"], ["ada"])
    Compaction(table).run()
    orphan = keyed(table, ["ada"])
    table = erased(table.reopened())
    torn = folder(table) / "date=2026-01-31" / "torn.parquet"
    torn.write_bytes(b"PAR1 and then the power went")

    found = {file.path: file for file in old_files(table, ADA)}

    assert 5 == len(found)
    assert found[orphan.files[0].path].may_come
    assert not found[f"date=2026-01-31/{torn.name}"].is_readable
    going = [file for file in found.values() if file.is_removable]
    remove(table, going)
    assert 3 == len(going)
    assert {
        orphan.files[0].path,
        f"date=2026-01-31/{torn.name}",
    } == {file.path for file in old_files(table, ADA)}
    assert [b"bob", b"bob"] == [row.key for row in rows_of(folder(table))]
    table.commit([orphan])
    assert [b"bob", b"bob", b"ada"] == [row.key for row in rows_of(folder(table))]


def test_no_byte_of_the_key_remains_in_the_table_after_a_vacuum(table: LakeTable, tmp_path: Path) -> None:
    archived(table, ["ada-lovelace", "bob"], ["bob"])
    arguments = [
        "--lake",
        str(tmp_path / "lake"),
        "-t",
        TOPIC,
        "-k",
        "ada-lovelace",
        "--offline",
        "--vacuum-now",
    ]

    result = CliRunner().invoke(command, arguments)

    assert (
        0,
        "orders: 1 records erased from 1 files (partition 0: 1)\norders: 1 files of older versions were removed\n",
    ) == (result.exit_code, result.output)
    assert not [
        file for file in folder(table).rglob("*") if file.is_file() and b"lovelace" in file.read_bytes()
    ]


def test_missing_file_is_reported_and_other_files_are_erased(table: LakeTable) -> None:
    table = archived(table, ["ada", "bob"], ["ada"], ["eve", "ada"])
    (lost,) = table.files_of(0, 2, 3)
    Path(table.absolute(lost)).unlink()
    told = [f"{table.location}/{lost.path} is not there. It may hold such records."]

    found = Erasure(table, ADA).find()
    done = Erasure(table, ADA).run()

    assert (found.counts(), found.errors) == (done.counts(), done.errors) == ({0: 2}, told)
    assert {1} == {file.count for file in table.reopened().files if file.path != lost.path}


# --- Killed -----------------------------------------------------------------------------------------------

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


def die(*_arguments: object, **_options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_afterwards(*arguments: Any, **options: Any) -> None:
    replace(*arguments, **options)
    die()


def killed(place: Path, step: str) -> None:
    """Erase, and kill this process at a step."""
    vars(erasing)["replace"] = die if step == "before commit" else die_afterwards
    Erasure(LakeTable.open(lake(place), TOPIC), ADA).run()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before commit", "after commit"])
def test_erasure_killed_at_any_step_is_completed_by_a_second_run(
    table: LakeTable, tmp_path: Path, step: str
) -> None:
    table = archived(table, ["ada", "bob"], ["ada"], ["bob"])
    before = rows_of(folder(table))

    process = PROCESSES.Process(target=killed, args=(tmp_path, step))
    process.start()
    process.join(60)

    assert -signal.SIGKILL == process.exitcode
    assert (step == "before commit") == (rows_of(folder(table)) == before)
    result = CliRunner().invoke(
        command,
        ["--lake", str(tmp_path / "lake"), "-t", TOPIC, "-k", "ada", "--offline", "--vacuum-now", "--json"],
    )
    (told,) = json.loads(result.output)
    assert (told["records"], told["old_files"], told["errors"]) == (
        {"0": 2} if step == "before commit" else {},
        0,
        [],
    )
    assert [b"bob", b"bob"] == [row.key for row in rows_of(folder(table))]
    assert [] == list(old_files(table.reopened(), ADA))


# --- The command ------------------------------------------------------------------------------------------


def test_command_prints_erased_records_and_remaining_old_files(table: LakeTable, tmp_path: Path) -> None:
    archived(table, ["ada", "bob", "eve"])
    keys = tmp_path / "keys"
    keys.write_text("eve\n")
    arguments = [
        "--lake",
        str(tmp_path / "lake"),
        "-t",
        TOPIC,
        "-k",
        "ada",
        "--key-file",
        str(keys),
        "--offline",
    ]

    dry = CliRunner().invoke(command, [*arguments, "--dry-run"])
    done = CliRunner().invoke(command, arguments)

    assert "orders: 2 records would be erased from 1 files (partition 0: 2)\n" == dry.output
    first, second = done.output.splitlines()
    assert "orders: 2 records erased from 1 files (partition 0: 2)" == first
    assert second.startswith("orders: 1 old files of ")
    assert "--vacuum-now removes them immediately" in second


def test_command_prints_commits_made_before_a_failure(
    table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archived(table, ["ada", "bob"], ["ada"])
    monkeypatch.setattr("korvet.lake.erasing.COMMIT_BYTES", 1)

    def once(*arguments: Any, **options: Any) -> LakeTable:
        monkeypatch.setattr("korvet.lake.erasing.replace", refused)
        return replace(*arguments, **options)

    def refused(*_arguments: Any, **_options: Any) -> LakeTable:
        raise Unreachable("the store refuses.")

    monkeypatch.setattr("korvet.lake.erasing.replace", once)
    arguments = ["--lake", str(tmp_path / "lake"), "-t", TOPIC, "-k", "ada", "--offline"]
    result = CliRunner().invoke(command, arguments)

    assert 1 == result.exit_code
    assert result.stdout.startswith("orders: 1 records erased from 1 files (partition 0: 1)\n")
    assert "korvet: the store refuses.\n" in result.stderr


def test_missing_key_and_missing_table_are_reported_in_one_line(table: LakeTable, tmp_path: Path) -> None:
    arguments = ["--lake", str(tmp_path / "lake"), "--offline"]

    none = CliRunner().invoke(command, [*arguments, "-t", TOPIC])
    elsewhere = CliRunner().invoke(command, [*arguments, "-t", "nowhere", "-k", "ada"])

    assert "No key was given; use --key, or --key-file with one key on each line." in none.output
    assert 1 == elsewhere.exit_code
    assert "There is no Delta table at" in elsewhere.output


def test_erasure_covers_ranges_whose_log_entries_were_removed(table: LakeTable) -> None:
    table = archived(table, ["ada", "bob"])
    table = table.commit([ArchivedRange(0, 2, 4)])
    table = archived(table, ["bob", "ada"])
    table.delta.create_checkpoint()
    for version in range(3):
        (folder(table) / "_delta_log" / f"{version:020d}.json").unlink()
    Erasure(table.reopened(), ADA).run()
    after = table.reopened()

    assert (6, 2, []) == (chained_up_to(after, 0), erased_count(after), audit_table(after, checksums=True))


def test_records_of_files_without_statistics_are_counted_by_their_footers(table: LakeTable) -> None:
    table = archived(table, ["ada", "bob"], ["ada"])
    assert 3 == record_count(table)
    table.index.files = [evolve(file, count=None) for file in table.files]

    assert 3 == record_count(table)
