from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from korvet.cli.lake.erase import command
from korvet.lake.erasing_decoded import DecodedErasure
from tests.pipeline.decoding import Lake

pytestmark = pytest.mark.slow

VALUES: list[Any] = [{"id": 1}, {"id": 2}, b"no JSON", {"id": 4}, b"none either", {"id": 6}]
KEYS = ["ada", "bob", "ada", "bob", "bob", "ada"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def erase(lake: Lake, *more: str) -> str:
    """Run the command on a lake whose typed tables are elsewhere, and return its output."""
    places = ["--lake", str(lake.folder / "raw"), "--typed", str(lake.folder / "typed")]
    result = CliRunner().invoke(command, [*places, "-t", "orders", "-k", "ada", "--offline", *more])
    assert 0 == result.exit_code, result.output
    return result.output


def test_rows_of_typed_and_dlq_tables_are_erased_by_partition_and_offset(lake: Lake) -> None:
    lake.archive(VALUES, keys=KEYS)
    lake.archive([{"id": 7}], partition=1, keys=["bob"])
    lake.decode()

    dry = erase(lake, "--dry-run")
    done = erase(lake)

    typed = lake.folder / "typed"
    assert f"{typed}/orders: 2 rows would be erased\n" in dry
    assert f"{typed}/orders~dlq: 1 rows would be erased\n" in dry
    assert f"{typed}/orders: 2 rows erased\n{typed}/orders~dlq: 1 rows erased\n" in done
    assert [(0, 2), (0, 4), (1, 7)] == lake.values("_partition", "id")
    assert [4] == list(lake.bad())


def test_rows_decoded_during_an_erasure_are_erased_by_the_next_one(lake: Lake) -> None:
    lake.archive([{"id": 1}, {"id": 2}], keys=["ada", "bob"])
    late = lake.decoding()

    def erase_before_commit(step: str) -> None:
        if step == "before commit":
            erase(lake)

    late.on_step = erase_before_commit
    late.round()
    assert [1, 2] == lake.values("id")

    erase(lake)

    assert [2] == lake.values("id")


def test_upsert_table_loses_the_row_of_an_erased_key(lake: Lake) -> None:
    settings: dict[str, Any] = {"upsert": True}
    lake.archive([{"id": 1}, {"id": 2}, {"id": 3}], keys=["ada", "bob", "ada"])
    lake.decode(**settings)
    erase(lake)

    assert [2] == lake.values("id")
    lake.archive([{"id": 4}], keys=["ada"])
    lake.decode(**settings)
    assert [2, 4] == lake.values("id")


def test_vacuum_now_removes_older_versions(lake: Lake) -> None:
    lake.archive([{"name": "lovelace"}, {"name": "babbage"}], keys=["ada", "bob"])
    lake.decode()
    erase(lake, "--vacuum-now")

    table = lake.folder / "typed" / "orders"
    assert 1 == len(list(table.glob("*.parquet")))
    assert not [path for path in table.rglob("*") if path.is_file() and b"lovelace" in path.read_bytes()]


def test_rows_of_a_partitioned_table_are_erased(lake: Lake) -> None:
    lake.archive(
        [{"name": "a b", "id": 1}, {"name": "c/d", "id": 2}, {"name": "a b", "id": 3}], keys=KEYS[:3]
    )
    lake.decode(partition_by=["name", "days"])
    erase(lake)

    assert [("c/d", 2)] == lake.values("name", "id")


def test_many_offsets_of_several_partitions_are_erased_in_batches(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.lake.erasing_decoded.PLACES_AT_ONCE", 3)
    for partition in (0, 1):
        lake.archive([{"id": number} for number in range(10)], partition=partition)
    lake.decode()
    places = {0: np.arange(0, 10, 2), 1: np.arange(0, 1000)}
    erasure = DecodedErasure(lake.location("typed").child("orders"), "orders", places)

    assert (True, 15, 15, 0) == (erasure.is_ours(), erasure.find(), erasure.run(), erasure.find())
    assert [(0, 1), (0, 3), (0, 5), (0, 7), (0, 9)] == lake.values("_partition", "id")


def test_table_is_scanned_again_only_after_a_conflict(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.lake.erasing_decoded.PLACES_AT_ONCE", 2)
    lake.archive([{"id": number} for number in range(10)])
    lake.decode()
    looked: list[int] = []
    deleted: list[str] = []

    def found(self: DecodedErasure, delta: DeltaTable) -> Any:
        looked.append(delta.version())
        return look(self, delta)

    def delete(self: DeltaTable, predicate: str, **options: Any) -> Any:
        deleted.append(predicate)
        if len(deleted) == 3:
            lake.archive([{"id": 10}])
            lake.decode()
        return do(self, predicate, **options)

    look, do = DecodedErasure._found, DeltaTable.delete
    monkeypatch.setattr(DecodedErasure, "_found", found)
    monkeypatch.setattr(DeltaTable, "delete", delete)
    places = {0: np.arange(1, 11)}
    count = DecodedErasure(lake.location("typed").child("orders"), "orders", places).run()

    assert (10, 3, 6) == (count, len(looked), len(deleted))
    assert [(0, 0)] == lake.values("_offset", "id")
