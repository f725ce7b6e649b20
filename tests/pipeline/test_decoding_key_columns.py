"""Keys of records become columns, from the formats of Kafka's and Confluent's serializers."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from google.protobuf import message_factory

from korvet.config import ConfigError
from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.protobuf_schemas import compiled, message_type
from tests.pipeline.confluent_serializers import Serializers
from tests.pipeline.decoding import Lake
from tests.pipeline.registries import FakeRegistry, framed

CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "fields": [{"name": "region", "type": "string"}, {"name": "id", "type": "long"}],
}


@pytest.mark.parametrize(
    "form, keys, expected, fault",
    [
        (
            "string",
            ["é", b"", None, b"\xff"],
            ["é", "", None],
            "key $: is not UTF-8: 'utf-8' codec can't decode",
        ),
        ("int", [b"\xff\xff\xff\xfe", b"\0\0\0\1", None, b"\1"], [-2, 1, None], "key $: has 1 bytes, not 4"),
        (
            "long",
            [struct.pack(">q", -(2**63)), bytes(8), None, b""],
            [-(2**63), 0, None],
            "key $: has 0 bytes, not 8",
        ),
    ],
    ids=["string", "int", "long"],
)
def test_single_values_are_one_column(
    lake: Lake, form: str, keys: list[str | bytes | None], expected: list[Any], fault: str
) -> None:
    lake.archive([{"id": number} for number in range(4)], keys=keys)

    lake.decode(key_format=form)

    assert [*enumerate(expected)] == lake.values("id", "key")
    assert [3] == list(lake.bad())
    assert lake.bad()[3].startswith(fault)


def test_json_keys_have_the_columns_of_their_schema(lake: Lake) -> None:
    fields = [
        {"name": name, "type": kind, "nullable": nullable, "metadata": {}}
        for name, kind, nullable in (("id", "long", False), ("at", "timestamp", True))
    ]
    lake.archive([{"n": 1}, {"n": 2}, {"n": 3}], keys=[b'{"id": 7, "x": 1}', b'{"at": null}', b"[]"])

    lake.decode(key_format="json", key_schema=json.dumps({"type": "struct", "fields": fields}))

    assert [(1, 7, None)] == lake.values("n", "key_id", "key_at")
    assert {1: "key $.id: is missing, and must be there", 2: "key $: [] is not an object"} == lake.bad()


@pytest.mark.parametrize("in_headers", [False, True], ids=["before", "header"])
def test_keys_and_values_of_avro_are_columns(lake: Lake, fake: FakeRegistry, *, in_headers: bool) -> None:
    keys = Serializers(fake, is_key=True, in_headers=in_headers)
    values = Serializers(fake, in_headers=in_headers)
    order = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})
    key, headers = keys.avro(json.dumps(CUSTOMER), {"region": "eu", "id": 7})
    value, more = values.avro(order, {"id": 1})
    lake.archive([value] * 3, keys=[key, None, b"x"], headers=[[*headers, *more], more, more])

    lake.decode(format="avro", registry=fake.url, key_format="avro", key_prefix="customer_")

    assert [(1, "eu", 7), (1, None, None)] == lake.values("id", "customer_region", "customer_id")
    assert lake.bad()[2].startswith("key $: does not begin with 0 and a schema's id")


def test_single_value_of_avro_is_one_column(lake: Lake, fake: FakeRegistry) -> None:
    keys = [Serializers(fake, is_key=True).avro('"string"', each)[0] for each in ("a", "b")]
    number = fake.register(
        "orders-value", '{"title": "Order", "properties": {"id": {"type": "integer"}}}', "JSON"
    )
    lake.archive([framed(number, b'{"id": 1}')] * 2, keys=keys)

    lake.decode(format="json-schema", registry=fake.url, key_format="avro", keep_key=True)

    assert [(1, "a", keys[0]), (1, "b", keys[1])] == lake.values("id", "key", "_key")


def test_keys_with_a_json_schema_get_the_columns_of_newer_versions(lake: Lake, fake: FakeRegistry) -> None:
    def text(**properties: Any) -> str:
        return json.dumps({"title": "Key", "type": "object", "properties": properties})

    keys = Serializers(fake, is_key=True)
    values = Serializers(fake)
    value = values.json(text(id={"type": "integer"}), {"id": 1})[0]
    lake.archive([value], keys=[keys.json(text(a={"type": "integer"}), {"a": 5})[0]])
    lake.decode(format="json", registry=fake.url, key_format="json-schema")

    newer = text(a={"type": "integer"}, **{"b c": {"type": ["string", "integer"]}})
    wrong = framed(fake.register("orders-key", newer, "JSON"), b'{"a": "x"}')
    lake.archive([value, value], keys=[keys.json(newer, {"a": 6, "b c": 1})[0], wrong])
    lake.decode(format="json", registry=fake.url, key_format="json-schema")

    assert [(1, 5, None), (1, 6, "1")] == lake.values("id", "key_a", "key_b_x0020_c")
    assert {2: 'key $.a: "x" is not of type "integer"'} == lake.bad()


@pytest.mark.slow  # protoc
def test_fields_of_protobuf_keys_are_columns(lake: Lake, fake: FakeRegistry) -> None:
    (lake.folder / "key.proto").write_text('syntax = "proto3"; message Key { int64 id = 1; }')
    key = message_factory.GetMessageClass(message_type(compiled("key.proto", lake.folder, "it"), None))
    written = [Serializers(fake, is_key=True, in_headers=each).protobuf(key(id=5)) for each in (False, True)]
    order = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})
    value, _ = Serializers(fake).avro(order, {"id": 1})
    lake.archive([value] * 2, keys=[key for key, _ in written], headers=[headers for _, headers in written])

    lake.decode(format="avro", registry=fake.url, key_format="protobuf")

    assert [(1, 5), (1, 5)] == lake.values("id", "key_id")


def test_tables_are_partitioned_by_columns_of_keys_and_inferred_fields_take_other_names(lake: Lake) -> None:
    lake.archive([{"id": 1, "key": "k"}, {"id": 2}, {"id": 3}], keys=["a", "b", ""])

    lake.decode(key_format="string", partition_by="key")

    assert [(2, "b")] == lake.values("id", "key")
    assert ["key=b"] == [each.name for each in (lake.folder / "typed" / "orders").glob("key=*")]
    assert {
        0: "$.key: no column could be added for it (max_columns, or its type differs between rows)",
        2: "$.key: is empty, and tables are not partitioned by that",
    } == lake.bad()


def test_latest_row_of_a_key_has_its_columns(lake: Lake) -> None:
    lake.archive([{"id": 1}, {"id": 2}, {"id": 3}, None], keys=["a", "b", "a", "b"])

    lake.decode(key_format="string", upsert=True)

    assert [(3, "a", b"a")] == lake.values("id", "key", "_key")


def test_column_of_both_is_refused(lake: Lake) -> None:
    lake.archive([{"key": 1}])

    with pytest.raises(
        SchemaFault, match=r"\$\.key: there are two columns .*; key_prefix gives another to that"
    ):
        lake.decode(
            format="json-schema", schema='{"properties": {"key": {"type": "string"}}}', key_format="string"
        )


@pytest.mark.parametrize(
    "settings, fault",
    [
        (
            {"key_format": "text"},
            "key_format: 'text' is none of string, int, long, json, json-schema, avro, protobuf",
        ),
        ({"key_schema": "a int"}, "key_schema: needs key_format"),
        ({"key_format": "long", "key_schema": "a int"}, "key_schema: does not go with key_format = 'long'"),
        ({"key_format": "json"}, "key_schema: is missing: with key_format = 'json'"),
        ({"key_format": "avro"}, "key_schema: key_format = 'avro' takes key_schema, or registry"),
        (
            {"key_format": "avro", "key_schema": "{}", "registry": "http://localhost:1"},
            "key_schema: key_format = 'avro' takes only one of key_schema and registry",
        ),
        ({"key_format": "protobuf"}, "key_format: 'protobuf' takes the schema from the registry"),
        ({"key_format": "string", "key_prefix": "a b"}, "key_prefix: 'a b' cannot begin names of columns"),
    ],
    ids=["format", "alone", "single", "json", "avro", "both", "protobuf", "prefix"],
)
def test_contradicting_settings_are_refused(lake: Lake, settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        lake.decoding(**settings)
