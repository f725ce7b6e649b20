"""Joined files are sorted by columns: readers skip files that they would read, and every row stays."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.cli.lake.compact import command as compact
from korvet.config import ConfigError
from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.mirrored import FOLDER
from korvet.pipeline.decoding.auditing import audit_decoded
from korvet.pipeline.decoding.clustering import Ranks
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.tables import CLUSTER_BY, DecodedTable
from tests.lake.iceberg_reading import reading
from tests.pipeline.decoding import Lake

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("clustering")]  # they share a lake

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
#: Small files, of which a quarter as many are made.
BATCHES, ROWS, FILES = 32, 128, 8


def typed(lake: Lake) -> DecodedTable:
    return DecodedTable.found(lake.location("typed").child(lake.topic))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with values of x and y from 0 to 63 in any order, so that each file has nearly all of them."""
    lake = Lake(tmp_path_factory.mktemp("filled"))
    random = Random(7)
    for _ in range(BATCHES):
        pads = [random.randbytes(100).hex() for _ in range(ROWS)]
        lake.archive([{"x": random.randrange(64), "y": random.randrange(64), "pad": pad} for pad in pads])
        lake.decode()
    return lake.folder


@pytest.fixture
def fill(filled: Path, tmp_path: Path) -> Callable[..., Lake]:
    """Return a function that makes a copy of the lake, to be sorted by the columns."""

    def copy(*columns: str) -> Lake:
        lake = Lake(tmp_path / "copy")
        shutil.copytree(filled, lake.folder)
        typed(lake).with_properties({CLUSTER_BY: json.dumps(columns)})
        return lake

    return copy


def target_bytes(lake: Lake) -> int:
    return sum(file.size for file in typed(lake).files) // FILES


def with_value(lake: Lake, column: str, value: int) -> int:
    """Return the number of files that a reader of the Delta table opens for a value."""
    condition = pc.field(column) == value
    return len(list(typed(lake).delta.to_pyarrow_dataset().get_fragments(filter=condition)))


def mirrored(lake: Lake) -> Mirror:
    mirror = Mirror(PathCatalog(lake.location("typed"), FOLDER), "typed")
    mirror.update(Original.open(lake.location("typed"), lake.topic))
    return mirror


@pytest.mark.parametrize(
    "columns, most",
    [(["x"], (2, 8)), (["x", "y"], (4, 6)), (["y", "pad", "_timestamp"], (8, 6))],
)
def test_readers_of_both_formats_skip_files_after_a_join(
    fill: Callable[..., Lake], columns: list[str], most: tuple[int, int]
) -> None:
    lake = fill(*columns)
    before = lake.rows()
    assert (BATCHES, BATCHES) == (with_value(lake, "x", 20), with_value(lake, "y", 20))
    mirrored(lake)
    words = ["--lake", str(lake.folder / "typed"), "--target-bytes", str(target_bytes(lake))]

    done, again = (CliRunner().invoke(compact, words).output.splitlines()[0] for _ in range(2))

    assert f"became {FILES} of" in done
    assert "orders: nothing to join" == again
    assert before == lake.rows()
    opened = with_value(lake, "x", 20), with_value(lake, "y", 20)
    assert opened[0] <= most[0]
    assert opened[1] <= most[1]
    iceberg = mirrored(lake).table(lake.topic)
    assert opened == tuple(len(list(iceberg.scan(row_filter=f"{each} = 20").plan_files())) for each in "xy")
    assert "replace" == iceberg.current_snapshot().summary.operation.value  # type: ignore[union-attr]
    found = reading(
        f"{lake.folder}/typed/orders/{FOLDER}", "select _offset, x, y, pad from {table} order by 1"
    )
    assert [(row["_offset"], row["x"], row["y"], row["pad"]) for row in before] == found
    assert [] == audit_decoded(typed(lake), "orders", checksums=True)


def test_rows_of_a_file_are_sorted_so_that_readers_skip_row_groups(fill: Callable[..., Lake]) -> None:
    lake = fill("pad")
    DecodedJoins(typed(lake)).run()

    (file,) = typed(lake).files
    pads = pq.read_table(typed(lake).absolute(file), partitioning=None)["pad"].to_pylist()
    assert sorted(pads) == pads


def sort_until_killed(lake: Lake, size: int) -> None:
    """Sort in this process, and kill it (SIGKILL) before the commit."""
    DecodedJoins(
        typed(lake),
        size,
        on_step=lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == "before commit" else None,
    ).run()


def test_killed_join_has_sorted_nothing(fill: Callable[..., Lake]) -> None:
    lake = fill("x")
    before = lake.rows()
    process = PROCESSES.Process(target=sort_until_killed, args=(lake, target_bytes(lake)))
    process.start()
    process.join()

    assert -signal.SIGKILL == process.exitcode
    assert (BATCHES, before) == (len(typed(lake).files), lake.rows())
    DecodedJoins(typed(lake), target_bytes(lake)).run()
    assert (FILES, before) == (len(typed(lake).files), lake.rows())


def test_merge_overtakes_a_join_which_starts_again(lake: Lake) -> None:
    upsert: dict[str, Any] = {"upsert": True, "key": ["x"], "cluster_by": ["x"], "deletes": "soft"}
    for first in (0, 1, 2):
        lake.archive([{"x": x, "n": first} for x in range(first, 30, 3)])
        lake.decode(**upsert)
    steps: list[str] = []

    def overtake(step: str) -> None:
        steps.append(step)
        if step == "before commit" and steps.count(step) == 1:
            lake.archive([{"x": 5, "n": 9}])
            lake.decode(**upsert)

    DecodedJoins(typed(lake), on_step=overtake).run()

    assert 2 == steps.count("before commit")
    (file,) = typed(lake).files
    rows = pq.read_table(typed(lake).absolute(file), partitioning=None)
    assert [*range(30)] == rows["x"].to_pylist()
    assert [9 if x == 5 else x % 3 for x in range(30)] == rows["n"].to_pylist()


def test_columns_may_change_and_old_rows_lack_new_ones(lake: Lake) -> None:
    lake.archive([{"x": 2}, {"x": 1}])
    lake.decode(cluster_by=["x"])
    lake.archive([{"x": 3, "z": 5}, {"x": 4, "z": 4}])
    lake.decode(cluster_by=["z", "x"])
    assert ("z", "x") == typed(lake).cluster_by
    DecodedJoins(typed(lake)).run()

    (file,) = typed(lake).files
    rows = pq.read_table(typed(lake).absolute(file), partitioning=None)
    assert [None, None, 4, 5] == rows["z"].to_pylist()
    lake.archive([{"x": 3}])
    lake.decode()
    assert () == typed(lake).cluster_by


def test_damaged_file_is_named_and_left(fill: Callable[..., Lake]) -> None:
    lake = fill("x", "y")
    path = Path(typed(lake).absolute(typed(lake).files[3]))
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)

    (error,) = DecodedJoins(typed(lake)).run().errors

    assert f"{path} is damaged" in error
    assert BATCHES == len(typed(lake).files)


# --- Ranks --------------------------------------------------------------------------------------------------

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "string": (pa.string(), st.text(max_size=3)),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "decimal": (pa.decimal128(8, 2), st.decimals(-99999, 99999, places=2)),
}


@pytest.mark.parametrize("kind", VALUES)
@settings(deadline=None)
@given(data=st.data())
def test_positions_are_in_the_order_of_the_values(kind: str, data: st.DataObject) -> None:
    of_arrow, strategy = VALUES[kind]
    values = data.draw(st.lists(st.none() | strategy, min_size=1, max_size=40))
    rows = pa.table({"v": pa.array(values, of_arrow)})
    files = data.draw(st.integers(1, 5))
    ranks = Ranks.of(rows, files)

    positions = ranks.positions(rows).tolist()

    pairs = list(zip(values, positions, strict=True))
    nulls = [place for value, place in pairs if value is None]
    others = [place for value, place in sorted(each for each in pairs if each[0] is not None)]
    assert [*nulls, *others] == sorted(positions)
    assert set(nulls) <= {0}
    assert files - 1 == len(ranks.ends)


# --- Bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [["a", "b", "c", "d", "e"], ["a", "a"]])
def test_too_many_columns_are_refused(lake: Lake, columns: list[str]) -> None:
    with pytest.raises(ConfigError, match="cluster_by: accepts up to 4 different columns"):
        lake.decoding(cluster_by=columns)


@pytest.mark.parametrize(
    "given, reason",
    [
        (
            {"cluster_by": ["no"]},
            "cluster_by: the files have no column no; they have x, box, _partition, _offset",
        ),
        ({"cluster_by": ["x"], "partition_by": ["x"]}, "cluster_by: the files have no column x"),
        ({"cluster_by": ["box"]}, "cluster_by: box is struct<y: bigint>, by which rows are not sorted"),
    ],
)
def test_columns_by_which_rows_are_not_sorted_are_refused(
    lake: Lake, given: dict[str, Any], reason: str
) -> None:
    lake.archive([{"x": 1, "box": {"y": 1}}])
    with pytest.raises(SchemaFault, match=reason):
        lake.decode(**given)
    assert not (lake.folder / "typed/orders").exists()
