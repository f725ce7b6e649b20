from __future__ import annotations

from pathlib import Path

import pytest

from korvet.lake.chain import Stretch, chained_up_to, missing_stretches
from korvet.lake.erasing import Erasure, key_set
from korvet.lake.files import ArchivedRange
from korvet.lake.table import Gap, LakeTable
from tests.lake.support import DAY_MS, NOON, TOPIC, TOPIC_ID, lake, written


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)


def test_partition_never_archived_has_no_chain(table: LakeTable) -> None:
    assert chained_up_to(table, 0) is None


def test_chain_spans_offset_gaps_and_ranges_without_records(table: LakeTable) -> None:
    table = table.commit([written(table, 5, 20, offsets=[7, 9, 12])])
    table = table.commit([ArchivedRange(0, 20, 30)])
    table = table.commit([written(table, 30, 40)])
    table = table.commit([ArchivedRange(0, 40, 41)])

    assert 41 == chained_up_to(table, 0)
    assert [] == missing_stretches(table, 0)


def test_chain_ends_where_a_foreign_delete_removed_rows(table: LakeTable) -> None:
    for start in range(0, 50, 10):
        table = table.commit([written(table, start, start + 10, timestamps=[NOON + start * DAY_MS] * 10)])
    table.delta.delete("date = '2026-02-20'")
    table = table.reopened()

    assert {0: 50} == table.archived_up_to
    assert 20 == chained_up_to(table, 0)
    assert [Stretch(20, 30)] == missing_stretches(table, 0)


def test_range_is_missing_when_rows_of_one_date_are_missing(table: LakeTable) -> None:
    days = [NOON + (offset % 2) * DAY_MS for offset in range(10)]
    table = table.commit([written(table, 0, 10, timestamps=days)])
    table.delta.delete("date = '2026-02-01'")

    assert [Stretch(0, 10)] == missing_stretches(table.reopened(), 0)


def test_restore_keeps_the_archived_offset_and_shortens_the_chain(table: LakeTable) -> None:
    table = table.commit([written(table, 0, 10)])
    version = table.version
    table = table.commit([written(table, 10, 20)])
    table.delta.restore(version)
    table = table.reopened()

    assert {0: 20} == table.archived_up_to
    assert 10 == chained_up_to(table, 0)


def test_ranges_committed_after_a_loss_do_not_hide_it(table: LakeTable) -> None:
    table = table.commit([written(table, 0, 10)])
    version = table.version
    table = table.commit([written(table, 10, 20)])
    table.delta.restore(version)
    table = table.reopened()
    table = table.commit([written(table, 20, 30)])

    assert [Stretch(10, 20)] == missing_stretches(table, 0)


def test_accepted_gap_is_part_of_the_chain(table: LakeTable) -> None:
    table = table.commit([written(table, 0, 10)])
    table = table.commit([ArchivedRange(0, 20, 20)], [Gap(0, 10, 20)])
    table = table.commit([written(table, 20, 25)])

    assert 25 == chained_up_to(table, 0)


def optimized(table: LakeTable) -> LakeTable:
    """Return the table after another writer's OPTIMIZE, which does not follow our file names."""
    table.delta.optimize.compact()
    after = table.reopened()
    assert all(file.held is None for file in after.files)
    return after


def test_chain_counts_files_of_a_foreign_optimize(table: LakeTable) -> None:
    table = table.commit([written(table, 0, 20, offsets=[1, 5, 9]), written(table, 0, 8, partition=1)])
    table = table.commit([written(table, 20, 30), ArchivedRange(1, 8, 9)])
    table = table.commit([written(table, 30, 40, offsets=[33]), written(table, 9, 12, partition=1)])
    table = optimized(table)

    assert 40 == chained_up_to(table, 0)
    assert 12 == chained_up_to(table, 1)


def test_rows_deleted_after_a_foreign_optimize_are_reported_missing(table: LakeTable) -> None:
    for start in range(0, 40, 10):
        table = table.commit([written(table, start, start + 10, offsets=[start + 2, start + 5])])
    table = optimized(table)
    table.delta.delete('"offset" = 15')

    assert [Stretch(10, 12), Stretch(13, 20)] == missing_stretches(table.reopened(), 0)


def test_chain_accepts_a_fully_erased_range_after_foreign_optimize(
    table: LakeTable,
) -> None:
    for start in (0, 20):
        table = table.commit([written(table, start, start + 20, offsets=[start + 3, start + 5], key=b"ada")])
    table = table.commit([written(table, 40, 45, timestamps=[NOON + DAY_MS] * 5)])
    erasure = Erasure(table, key_set([b"ada"]))
    assert [] == erasure.run().errors
    before = len(erasure.table.files)
    erasure.table.delta.optimize.compact()
    after = table.reopened()

    assert len(after.files) < before
    assert [] == missing_stretches(after, 0)
    assert 45 == chained_up_to(after, 0)
