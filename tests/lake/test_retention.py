from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from korvet.cli.lake.retain import command
from korvet.lake.chain import chained_up_to, missing_stretches
from korvet.lake.errors import CommitConflict
from korvet.lake.remote import RemoteReader
from korvet.lake.retention import drop_before, expired_up_to
from korvet.lake.table import LakeTable
from tests.lake.support import DAY_MS, NOON, TOPIC, TOPIC_ID, lake, written


def days_of(folder: Path, *days: tuple[int, ...]) -> LakeTable:
    """Return a table of ranges of ten offsets, whose records have these days in turn."""
    table = LakeTable.open_or_create(lake(folder), TOPIC, TOPIC_ID)
    for number, chosen in enumerate(days):
        timestamps = [NOON + DAY_MS * chosen[index % len(chosen)] for index in range(10)]
        start = 10 * number
        table = table.commit([written(table, start, start + 10, timestamps=timestamps)])
    return table


def test_ranges_expire_from_the_start_while_all_their_records_are_old(tmp_path: Path) -> None:
    table = days_of(tmp_path, (0,), (1, 0), (5,), (1,))

    assert {0: 20} == expired_up_to(table, NOON + 2 * DAY_MS)
    assert {0: 10} == expired_up_to(table, NOON + DAY_MS)
    assert {} == expired_up_to(table, NOON)
    assert {0: 40} == expired_up_to(table, NOON + 9 * DAY_MS)


def test_archive_start_advances_and_leaves_no_missing_range(tmp_path: Path) -> None:
    table = days_of(tmp_path, (0,), (1, 0), (5,), (1,))

    table = drop_before(table, {0: 20})

    assert (20, 40, 40) == (table.start(0), table.archived_up_to[0], chained_up_to(table, 0))
    assert [] == missing_stretches(table, 0)
    assert [20, 30] == sorted(file.held.start for file in table.files if file.held)
    reader = RemoteReader(lake(tmp_path))
    found = reader.first(TOPIC, TOPIC_ID, 0, 0, 40)
    assert found is not None
    assert 20 == found.offset


def test_archive_continues_after_every_range_expired(tmp_path: Path) -> None:
    table = drop_before(days_of(tmp_path, (0,), (1,)), {0: 20})

    table = table.commit([written(table, 20, 30)])

    assert (20, 30, 30) == (table.start(0), table.archived_up_to[0], chained_up_to(table, 0))


def test_records_without_timestamp_do_not_expire(tmp_path: Path) -> None:
    table = LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)
    table = table.commit([written(table, 0, 10, timestamps=[-1] * 10)])

    assert {} == expired_up_to(table, NOON)


def test_files_of_another_writer_do_not_expire(tmp_path: Path) -> None:
    days_of(tmp_path, (0,), (0,)).delta.optimize.compact()
    table = LakeTable.open(lake(tmp_path), TOPIC, TOPIC_ID)

    assert {} == expired_up_to(table, NOON + DAY_MS)


def test_retention_conflicts_with_or_keeps_a_concurrent_commit(tmp_path: Path) -> None:
    table = days_of(tmp_path, (0,), (1,))
    newer = table.commit([written(table, 20, 30)])

    try:
        drop_before(table, {0: 10})
    except CommitConflict:
        return
    after = LakeTable.open(lake(tmp_path), TOPIC, TOPIC_ID)
    assert after.archived_up_to == newer.archived_up_to
    assert 30 == chained_up_to(after, 0)


@pytest.mark.parametrize("dry_run", [True, False])
def test_command_prints_the_new_start_of_each_partition(tmp_path: Path, dry_run: bool) -> None:
    days_of(tmp_path, (0,), (1,))
    arguments = ["--lake", str(tmp_path / "lake"), "--older-than", "1d", *(["--dry-run"] if dry_run else [])]

    result = CliRunner().invoke(command, arguments)

    assert f"orders-0 {'would begin' if dry_run else 'begins'} at offset 20\n" == result.output
    assert (0 if dry_run else 20) == LakeTable.open(lake(tmp_path), TOPIC).start(0)
    wrong = CliRunner().invoke(command, ["--lake", str(tmp_path / "lake"), "--older-than", "soon"])
    assert "Accepted: PT1H30M, P7D" in wrong.output


def test_age_of_zero_needs_a_confirmation(tmp_path: Path) -> None:
    days_of(tmp_path, (0,), (1,))
    arguments = ["--lake", str(tmp_path / "lake"), "--older-than", "0d"]

    refused = CliRunner().invoke(command, arguments)

    assert 2 == refused.exit_code
    assert "--older-than 0 drops all archived records; confirm this with --yes" in refused.output
    assert 0 == LakeTable.open(lake(tmp_path), TOPIC).start(0)
    assert 0 == CliRunner().invoke(command, [*arguments, "--dry-run"]).exit_code
    assert "begins at offset" in CliRunner().invoke(command, [*arguments, "--yes"]).output
