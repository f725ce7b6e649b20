from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from korvet.lake.errors import CommitConflict, NewerFormat, NoTable, OutOfOrder, WrongTable
from korvet.lake.files import ArchivedRange
from korvet.lake.table import Gap, LakeTable
from tests.lake.support import NOON, TOPIC, TOPIC_ID, lake, written


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)


def test_new_table_has_a_topic_id_and_no_partitions(tmp_path: Path, table: LakeTable) -> None:
    opened = LakeTable.open(lake(tmp_path), TOPIC, TOPIC_ID)

    assert opened.topic_id == table.topic_id == TOPIC_ID
    assert {} == opened.archived_up_to
    assert [] == opened.files


def test_commit_adds_records_and_advances_archived_offsets_atomically(table: LakeTable) -> None:
    after = table.commit([written(table, 100, 150), written(table, 0, 10, partition=3)])

    assert {0: 150, 3: 10} == after.archived_up_to
    assert [
        (0, 100, 149, 50),
        (3, 0, 9, 10),
    ] == [(file.first_partition, file.first_offset, file.last_offset, file.count) for file in after.files]
    assert 100 == after.start(0)


def test_commit_does_not_change_the_snapshot_it_started_from(table: LakeTable) -> None:
    table.commit([written(table, 0, 10)])

    assert {} == table.archived_up_to
    assert [] == table.files


def test_range_without_records_advances_the_archived_offset_only(table: LakeTable) -> None:
    after = table.commit([written(table, 0, 10)]).commit([ArchivedRange(0, 10, 17)])

    assert {0: 17} == after.archived_up_to
    assert 1 == len(after.files)


@pytest.mark.parametrize("start", [9, 11])
def test_range_that_does_not_start_at_the_archived_offset_is_refused(table: LakeTable, start: int) -> None:
    after = table.commit([written(table, 0, 10)])

    with pytest.raises(OutOfOrder, match=f"orders-0: {start} to 20 .* the table's number is 10"):
        after.commit([written(after, start, 20)])


def test_second_of_two_commits_on_the_same_snapshot_is_refused(tmp_path: Path, table: LakeTable) -> None:
    other = LakeTable.open(lake(tmp_path), TOPIC, TOPIC_ID)
    table.commit([written(table, 0, 10)])

    with pytest.raises(CommitConflict, match="oncurrent"):
        other.commit([written(other, 0, 12)])
    assert {0: 10} == LakeTable.open(lake(tmp_path), TOPIC).archived_up_to


def test_commits_to_other_partitions_do_not_conflict(tmp_path: Path, table: LakeTable) -> None:
    other = LakeTable.open(lake(tmp_path), TOPIC, TOPIC_ID)
    table.commit([written(table, 0, 10)])

    assert {0: 10, 1: 5} == other.commit([written(other, 0, 5, partition=1)]).archived_up_to


def test_commit_info_contains_count_and_checksum_of_each_range(table: LakeTable) -> None:
    item = written(table, 0, 10)
    after = table.commit([item])

    ((_, info),) = after.commits(1)
    assert [[0, 0, 10, 10, str(item.checksum)]] == info["korvet.ranges"]


def test_archived_offsets_are_read_from_checkpoints(tmp_path: Path, table: LakeTable) -> None:
    for end in range(1, 46):
        table = table.commit([ArchivedRange(0, end - 1, end), ArchivedRange(1, end - 1, end)])

    assert list((tmp_path / "lake/orders/_delta_log").glob("*.checkpoint.parquet"))
    assert LakeTable.open(lake(tmp_path), TOPIC).archived_up_to == table.archived_up_to == {0: 45, 1: 45}


def test_accepted_gap_is_recorded(tmp_path: Path, table: LakeTable) -> None:
    table = table.commit([written(table, 0, 10)])
    table.commit([written(table, 30, 40)], [Gap(0, 10, 30)])

    opened = LakeTable.open(lake(tmp_path), TOPIC)
    assert [Gap(0, 10, 30)] == opened.gaps
    assert {0: 40} == opened.archived_up_to


def test_open_raises_no_table_when_the_folder_is_empty(tmp_path: Path) -> None:
    with pytest.raises(NoTable, match=f"There is no Delta table at {tmp_path}/lake/orders."):
        LakeTable.open(lake(tmp_path), TOPIC)


def test_table_is_not_created_in_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "lake/orders").mkdir(parents=True)
    (tmp_path / "lake/orders/notes.txt").write_text("mine")

    with pytest.raises(NoTable, match="is not a Delta table, and not empty"):
        LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)
    assert ["notes.txt"] == [path.name for path in (tmp_path / "lake/orders").iterdir()]


def test_table_is_created_while_another_process_creates_it(tmp_path: Path) -> None:
    (tmp_path / "lake/orders/_delta_log").mkdir(parents=True)  # without a commit so far

    assert 0 == LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID).version


def test_foreign_table_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "lake/orders"), pa.table({"x": [1]}))

    with pytest.raises(WrongTable, match="no archive of korvet's"):
        LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)


def test_table_of_another_topic_is_refused(tmp_path: Path, table: LakeTable) -> None:
    (tmp_path / "lake/orders").rename(tmp_path / "lake/bills")

    with pytest.raises(WrongTable, match="is the archive of topic orders, not of bills"):
        LakeTable.open(lake(tmp_path), "bills")


def test_table_of_a_recreated_topic_is_refused_with_advice(tmp_path: Path, table: LakeTable) -> None:
    with pytest.raises(WrongTable, match="deleted and created again .* to another place"):
        LakeTable.open_or_create(lake(tmp_path), TOPIC, uuid4())


def test_newer_format_is_refused(tmp_path: Path, table: LakeTable) -> None:
    table.delta.alter.set_table_properties({"korvet.format.version": "2"}, raise_if_not_exists=False)

    with pytest.raises(NewerFormat, match="has format version 2; this korvet reads up to 1"):
        LakeTable.open(lake(tmp_path), TOPIC)


def test_unsupported_delta_protocol_version_is_refused(tmp_path: Path, table: LakeTable) -> None:
    action = {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}
    log = tmp_path / "lake/orders/_delta_log"
    (log / f"{1:020d}.json").write_text(json.dumps(action) + "\n")

    with pytest.raises(NewerFormat, match="orders"):
        LakeTable.open(lake(tmp_path), TOPIC).commit([ArchivedRange(0, 0, 0)])


def test_open_or_create_returns_the_existing_table(tmp_path: Path) -> None:
    first = LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)
    second = LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)

    assert first.delta.metadata().id == second.delta.metadata().id


def test_newest_snapshot_is_not_opened_again(tmp_path: Path, table: LakeTable) -> None:
    after = table.commit([written(table, 0, 10)])

    assert after is LakeTable.open(lake(tmp_path), TOPIC, previous=after)
    assert 1 == len(LakeTable.open(lake(tmp_path), TOPIC, previous=table).files)


def test_table_that_was_made_again_is_not_taken_for_the_previous_one(
    tmp_path: Path, table: LakeTable
) -> None:
    before = table.commit([written(table, 0, 10)])
    shutil.rmtree(tmp_path / "lake/orders")
    again = LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)
    again.commit([written(again, 0, 10)])

    opened = LakeTable.open(lake(tmp_path), TOPIC, previous=before)

    assert (before.version, again.delta.metadata().id) == (opened.version, opened.delta.metadata().id)


def test_files_are_found_by_partition_and_offsets(table: LakeTable) -> None:
    days = [NOON + (offset % 3) * 86_400_000 for offset in range(30)]
    table = table.commit([written(table, 0, 30, timestamps=days), written(table, 0, 30, partition=1)])
    table = table.commit([written(table, 30, 60)])

    assert ["2026-01-31", "2026-02-01", "2026-02-02"] == [file.date for file in table.files_of(0, 5, 6)]
    assert [30] == [file.first_offset for file in table.files_of(0, 30, 31)]
    assert [] == table.files_of(2, 0, 100)


def test_deltalake_reads_committed_records(table: LakeTable) -> None:
    after = table.commit([written(table, 0, 3, timestamps=[NOON, -(2**63), 2**62])])

    found = DeltaTable(str(after.location)).to_pyarrow_table().sort_by("offset").to_pylist()
    assert [b"value 0", b"value 1", b"value 2"] == [row["value"] for row in found]
    assert ["2026-01-31", "None", "None"] == [str(row["date"]) for row in found]
    assert ["2026-01-31 12:00:00+00:00", "None", "None"] == [str(row["timestamp"]) for row in found]
    assert [NOON, -(2**63), 2**62] == [row["timestamp_ms"] for row in found]
