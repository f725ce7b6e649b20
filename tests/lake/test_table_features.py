"""Tables with deletion vectors or renamed columns are read correctly, and neither mirrored nor written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from korvet.lake.errors import NewerFormat
from korvet.lake.iceberg.original import NotMirrored, Original
from korvet.lake.table_features import has_column_mapping, has_deletion_vectors, refuse_other_features
from korvet.pipeline.datafusion import query
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.tables import TYPED, DecodedTable
from korvet.pipeline.views import Lake
from tests.lake.foreign_tables import ROWS, mapped_table, rename_column, table_with_deletions
from tests.lake.support import TOPIC, TOPIC_ID, lake
from tests.lake.test_mirror_typed import grown

COLUMNS = pa.schema([("_partition", pa.int32()), ("_offset", pa.int64()), ("item", pa.string())])


@pytest.mark.parametrize("mode, reader_version", [("name", 2), ("name", 3), ("id", 2)])
def test_renamed_columns_are_read_by_their_names(tmp_path: Path, mode: str, reader_version: int) -> None:
    mapped_table(tmp_path / "lake" / "foreign", mode=mode, reader_version=reader_version)

    _, rows = query(Lake(lake(tmp_path), typed=lake(tmp_path)), "select * from typed_foreign order by id")

    assert rows == ROWS
    assert has_column_mapping(DeltaTable(str(tmp_path / "lake" / "foreign")))


def test_deleted_rows_are_left_out(tmp_path: Path) -> None:
    table_with_deletions(tmp_path / "lake" / "foreign")

    _, rows = query(Lake(lake(tmp_path), typed=lake(tmp_path)), "select * from typed_foreign order by id")

    assert rows == [ROWS[0], ROWS[2]]
    assert has_deletion_vectors(DeltaTable(str(tmp_path / "lake" / "foreign")))


def test_table_whose_column_another_writer_has_renamed_is_not_written(tmp_path: Path) -> None:
    table = DecodedTable.create(lake(tmp_path).child(TOPIC), TYPED, TOPIC, TOPIC_ID, COLUMNS)
    for _ in range(2):
        table = grown(table, item="nut")
    rename_column(Path(table.location.path), "item", "product")
    table = table.reopened()

    reason = (
        "has column mapping, which another writer enabled, and renamed columns; korvet cannot write its files"
    )
    with pytest.raises(NewerFormat, match=reason):
        DecodedJoins(table).run()
    with pytest.raises(NewerFormat, match=reason):
        table.append([])
    with pytest.raises(
        NotMirrored, match="has deletion vectors or renamed columns, which another writer made"
    ):
        Original.open(lake(tmp_path), TOPIC)
    assert table.version == DeltaTable(table.location.path).version()


def test_mapping_that_renames_no_column_is_accepted(tmp_path: Path) -> None:
    table = DecodedTable.create(lake(tmp_path).child(TOPIC), TYPED, TOPIC, TOPIC_ID, COLUMNS)
    rename_column(Path(table.location.path), "", "")

    table = grown(table.reopened(), item="nut")

    refuse_other_features(table.location, table.delta)
    assert 1 == table.row_count
