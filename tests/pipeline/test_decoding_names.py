"""JSON fields whose names no column can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, MapType, StringType, StructType

from korvet.pipeline.decoding.names import column_name, field_name, is_fit
from tests.pipeline.decoding import Lake

NAMES = st.text(st.sampled_from(" ,;{}()\n\t=_x0025FfFaZ-.é"), min_size=1, max_size=20)


@given(NAMES)
@example("_x0020 ")
@example("a_x0020_b")
@example("__x005F_x0020_")
def test_every_field_name_is_encoded_as_a_column_name_and_decoded_back(name: str) -> None:
    assert is_fit(column_name(name))
    assert name == field_name(column_name(name))


@pytest.mark.parametrize("name", ["id", "pos_x", "_x", "x0020", "a_x00g0_b", "size_x1024", "a.b", "ä"])
def test_valid_column_names_are_unchanged(name: str) -> None:
    assert name == column_name(name)


def test_field_names_with_spaces_become_columns(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.archive(
        [
            {"first name": "Ada", "of": [{"unit price (EUR)": 1.5}], "a_x0020_b": 1},
            {"first name": "Grace", "of": [], "a_x0020_b": 2},
        ]
    )
    lake.decode()
    lake.archive([{"first name": "Mary", "a,b;c": True}])
    lake.decode()

    assert ["Ada", "Grace", "Mary"] == lake.values("first_x0020_name")
    assert [[{"unit_x0020_price_x0020__x0028_EUR_x0029_": 1.5}], [], None] == lake.values("of")
    assert [1, 2, None] == lake.values("a_x005F_x0020_b")
    assert [None, None, True] == lake.values("a_x002C_b_x003B_c")
    assert {} == lake.bad()


@pytest.mark.parametrize("settings", [{}, {"rename": {"first name": "name"}}, {"flatten": "_"}], ids=str)
def test_schema_uses_the_original_field_names(tmp_path: Path, settings: dict[str, Any]) -> None:
    lake = Lake(tmp_path)
    lake.archive([{"first name": "Ada", "of": {"a b": 1}, "by": {"key = 1": 2}}])
    fields = StructType().add("first name", "string").add("of", StructType().add("a b", "long"))
    fields.add("by", MapType(StringType(), LongType()))
    if "rename" in settings:
        fields["first name"].name = "name"
    lake.decode(schema=fields.json(), **settings)

    (row,) = lake.rows()
    assert "Ada" == row["name" if "rename" in settings else "first_x0020_name"]
    assert 1 == (row["of_a_x0020_b"] if "flatten" in settings else row["of"]["a_x0020_b"])
    assert [("key = 1", 2)] == row["by"]
    assert {} == lake.bad()
