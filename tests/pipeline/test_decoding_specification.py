"""Specifications of topics: valid ones are parsed, and all faults of invalid ones are reported together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from korvet.config import ConfigError
from korvet.pipeline.decoding.specification import Specification, specifications


def errors(text: str, folder: Path, topics: tuple[str, ...] = (), **options: Any) -> list[str]:
    """Return the errors for a file with this text, with the folder's path replaced."""
    file = folder / "decode.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        specifications(topics, file, options)
    return [line.replace(str(folder), "…") for line in caught.value.errors]


def test_default_format_is_json_with_added_columns() -> None:
    found = specifications(("orders",), None, {})["orders"]

    assert ("json", "add", "long", "dlq", "orders", "orders~dlq") == (
        found.format,
        found.unknown,
        found.numbers,
        found.on_error,
        found.table,
        found.dlq,
    )


def test_options_override_sections_and_sections_override_defaults(tmp_path: Path) -> None:
    file = tmp_path / "decode.toml"
    file.write_text(
        """
        [defaults]
        numbers = "double"
        sample = 5
        [topics.orders]
        numbers = "string"
        partition_by = ["a", "days"]
        [topics."eu.orders"]
        format = "avro"
        registry = "http://registry"
        rename = {a = "b"}
        numbers = "long"
        """
    )

    found = specifications((), file, {"sample": 7})

    assert ["orders", "eu.orders"] == list(found)
    assert ("string", 7, ("a", "days")) == (
        found["orders"].numbers,
        found["orders"].sample,
        found["orders"].partition_by,
    )
    assert (
        Specification(
            "eu.orders",
            format="avro",
            numbers="long",
            sample=7,
            registry="http://registry",
            rename={"a": "b"},
            framing="confluent",
            unknown="drop",
        )
        == found["eu.orders"]
    )


def test_all_errors_of_a_specification_are_reported_together(tmp_path: Path) -> None:
    text = """
        [defaults]
        on_error = "ignore"
        [topics.orders]
        shcema = "a int"
        sample = "5"
        upsert = 1
        rename = {a = 1}
        partition_by = 7
        [topics.pages]
        on_error = "dlq"
        schema = "a int"
        schema_file = "a.json"
        table = "a/b"
        flatten = "; "
        max_columns = 0
        rename_file = "nowhere.toml"
        [others]
    """

    assert [
        "…/decode.toml: $.others: unknown section; accepted: [defaults], [topics.<name>]",
        "…/decode.toml: $.topics.orders.shcema: there is no such setting; is schema meant?",
        "…/decode.toml: $.topics.orders.sample: '5' is not a whole number",
        "…/decode.toml: $.topics.orders.on_error: 'ignore' is none of dlq, skip, stop",
        "…/decode.toml: $.topics.orders.upsert: 1 is not true or false",
        "…/decode.toml: $.topics.orders.rename['a']: 1 is not a text",
        "…/decode.toml: $.topics.orders.partition_by: 7 is not a list of names",
        "…/decode.toml: $.topics.pages.schema: is given twice: as schema and as schema_file",
        "…/decode.toml: $.topics.pages.table: 'a/b' cannot name a folder; without / \\ : ~ it could",
        "…/decode.toml: $.topics.pages.max_columns: must be at least 1",
        "…/decode.toml: $.topics.pages.flatten: '; ' cannot join names of columns; _ could",
        "…/decode.toml: $.topics.pages.schema_file: there is no file …/a.json",
        "…/decode.toml: $.topics.pages.rename_file: …/nowhere.toml: No such file or directory",
    ] == errors(text, tmp_path)


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"format": "avro"}, "schema_file: avro needs schema_file, or registry"),
        (
            {"format": "avro", "schema": "{}", "framing": "confluent"},
            "framing: 'confluent' needs the registry",
        ),
        ({"format": "protobuf", "schema": "x"}, "schema: is for json and avro; protobuf takes schema_file"),
        ({"format": "avro", "schema": "{}", "numbers": "double"}, "numbers: is for json"),
        ({"format": "avro", "schema": "{}", "unknown": "add"}, "unknown: is for json"),
        ({"registry": "http://x", "framing": "none"}, "framing: 'none' does not go with registry"),
        ({"message": "M"}, "message: is for protobuf"),
        ({"upsert": True, "partition_by": ["a"]}, "partition_by: does not go with upsert"),
        ({"upsert": True, "tombstones": "keep"}, "tombstones: 'keep' cannot be combined with upsert"),
    ],
)
def test_conflicting_settings_are_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        specifications(("orders",), None, settings)

    (line,) = caught.value.errors
    assert line.startswith(f"topic orders.{error}")


def test_specification_without_topics_is_refused(tmp_path: Path) -> None:
    assert ["No topic is named: give --topics, or a file with sections [topics.<name>]."] == errors(
        "", tmp_path
    )


def test_invalid_toml_is_refused(tmp_path: Path) -> None:
    (line,) = errors("a = ", tmp_path)

    assert line.startswith("…/decode.toml is not valid TOML: ")


def test_renames_of_file_and_specification_are_merged(tmp_path: Path) -> None:
    (tmp_path / "names.toml").write_text('a = "x"\n"b.c" = "y"\n')
    file = tmp_path / "decode.toml"
    file.write_text('[topics.orders]\nrename_file = "names.toml"\nrename = {a = "z"}\n')

    assert {"a": "z", "b.c": "y"} == specifications((), file, {})["orders"].rename
