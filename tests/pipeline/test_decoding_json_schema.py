"""JSON with a schema of the registry: Confluent's serializer makes the values, which become typed columns."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from korvet.config import ConfigError
from korvet.pipeline.decoding.json_schema_columns import json_schema_fields
from korvet.pipeline.decoding.json_schema_documents import Documents
from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.schemas import ddl
from tests.pipeline.confluent_serializers import Serializers
from tests.pipeline.decoding import Lake
from tests.pipeline.registries import FakeRegistry, framed

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def schema(properties: dict[str, Any], **others: Any) -> str:
    return json.dumps({"title": "Order", "type": "object", "properties": properties, **others})


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    """The typed rows without the columns about the record."""
    return [{name: value for name, value in row.items() if name[0] != "_"} for row in lake.rows()]


@pytest.mark.parametrize("draft, definitions", [(DRAFT_7, "definitions"), (DRAFT_2020, "$defs")])
def test_every_kind_of_property_has_its_column(
    lake: Lake, fake: FakeRegistry, draft: str, definitions: str
) -> None:
    text = schema(
        {
            "id": {"type": "integer"},
            "price": {"type": "number"},
            "paid": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "day": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
            "state": {"enum": ["new", "paid", None]},
            "kind": {"const": "order"},
            "customer": {"$ref": f"#/{definitions}/customer"},
            "lines": {"type": "array", "items": {"$ref": f"#/{definitions}/line"}},
            "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
            "weight": {"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]},
        },
        **{
            "$schema": draft,
            "required": ["id"],
            definitions: {
                "customer": {"type": "object", "properties": {"name": {"type": "string"}}},
                "line": {
                    "allOf": [
                        {"type": "object", "properties": {"sku": {"type": "string"}}},
                        {"properties": {"count": {"type": "integer"}}},
                    ]
                },
            },
        },
    )
    full = {
        "id": 7,
        "price": 1.5,
        "paid": True,
        "note": "n",
        "at": "2026-01-31T12:00:00.5+01:00",
        "day": "2026-01-31",
        "state": "paid",
        "kind": "order",
        "customer": {"name": "Ada"},
        "lines": [{"sku": "a", "count": 2}, {"sku": "b"}],
        "tags": {"x": 1},
        "weight": 2,
    }
    serializers = Serializers(fake)
    lake.archive([serializers.json(text, each)[0] for each in (full, {"id": 8.0})] + [None])

    lake.decode(format="json-schema", registry=fake.url)

    typed = {
        **full,
        "at": dt.datetime(2026, 1, 31, 11, 0, 0, 500_000, dt.UTC),
        "day": dt.date(2026, 1, 31),
        "lines": [{"sku": "a", "count": 2}, {"sku": "b", "count": None}],
        "tags": [("x", 1)],
        "weight": 2.0,
    }
    assert [typed, {**dict.fromkeys(full), "id": 8}] == rows_of(lake)
    assert {} == lake.bad()


def test_values_that_are_not_valid_are_bad_rows_with_their_place(lake: Lake, fake: FakeRegistry) -> None:
    text = schema(
        {
            "id": {"type": "integer", "minimum": 1},
            "lines": {"type": "array", "items": {"properties": {"sku": {"type": "string", "maxLength": 3}}}},
            "at": {"type": "string", "format": "date-time"},
        },
        required=["id"],
        additionalProperties=False,
    )
    number = fake.register("orders-value", text, "JSON")
    avro = fake.register("other", '"string"')
    values = [
        {"id": 1},
        {"id": 0},
        {},
        {"id": 1, "lines": [{"sku": "abc"}, {"sku": "abcd"}]},
        {"id": 1, "other": 5},
        {"id": 1, "at": "yesterday"},
        {"id": 2**63},
        {"id": 1e3},
        {"id": "x" * 500},
        [],
    ]
    lake.archive(
        [framed(number, json.dumps(each).encode()) for each in values]
        + [framed(number, b"{"), framed(avro, b"{}"), framed(3, b"{}"), b'{"id": 1}', framed(number, b"\xff")]
    )

    lake.decode(format="json-schema", registry=fake.url)

    assert [1, 1000] == lake.values("id")
    bad = lake.bad()
    assert "$.id: 0 is less than the minimum of 1" == bad[1]
    assert '$: "id" is a required property' == bad[2]
    assert '$.lines[].sku: "abcd" is longer than 3 characters' == bad[3]
    assert "$: Additional properties are not allowed ('other' was unexpected)" == bad[4]
    assert '$.at: "yesterday" is not a timestamp; accepted: 2026-01-31T12:00:00.123456Z' == bad[5]
    assert "$.id: 9223372036854775808 is out of range of bigint" == bad[6]
    assert bad[8].endswith("…")
    assert 215 > len(bad[8])
    assert '$: [] is not of type "object"' == bad[9]
    assert bad[10].startswith("$: is not JSON: ")
    assert f"$: schema {avro} is one for AVRO, not for JSON" == bad[11]
    assert "has no schemas/ids/3" in bad[12]
    assert bad[13].startswith("$: does not begin with 0 and a schema's id")
    assert bad[14].startswith("$: is not JSON: ")
    assert 13 == len(bad)


def test_what_a_column_cannot_have_is_json_text(lake: Lake, fake: FakeRegistry) -> None:
    text = schema(
        {
            "mixed": {"type": ["string", "integer"]},
            "either": {
                "oneOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "string"}]
            },
            "any": True,
            "free": {"type": "object"},
            "pair": {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]},
            "list": {"type": "array"},
            "node": {"$ref": "#/definitions/node"},
            "maps": {"type": "object", "additionalProperties": {"type": ["integer", "boolean"]}},
            "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "string"}]},
        },
        **{
            "$schema": DRAFT_7,
            "definitions": {
                "node": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "next": {"$ref": "#/definitions/node"}},
                }
            },
        },
    )
    value: dict[str, Any] = {
        "mixed": "x",
        "either": {"a": 1},
        "any": 2**63,
        "free": {"ä": [1, None]},
        "pair": [1, "é"],
        "list": [],
        "node": {"name": "n", "next": {"name": "m"}},
        "maps": {"p": True, "q": 1},
        "when": "2026-01-31",
    }
    serializers = Serializers(fake)
    values: list[dict[str, Any]] = [value, {"mixed": 5}, {"any": {}}]
    lake.archive([serializers.json(text, each)[0] for each in values])
    large = b"123456789012345678901234567890"
    lake.archive([framed(100_000, b'{"any": %b}' % large), framed(100_000, b'{"either": null}')])

    lake.decode(format="json-schema", registry=fake.url)

    assert {
        "mixed": '"x"',
        "either": '{"a":1}',
        "any": str(2**63),
        "free": '{"ä":[1,null]}',
        "pair": '[1,"é"]',
        "list": "[]",
        "node": {"name": "n", "next": '{"name":"m"}'},
        "maps": [("p", "true"), ("q", "1")],
        "when": "2026-01-31",
    } == rows_of(lake)[0]
    assert [("5", None), (None, "{}"), (None, large.decode())] == lake.values("mixed", "any")[1:]
    assert {
        4: "$.either: null is not valid under any of the schemas listed in the 'oneOf' keyword"
    } == lake.bad()


def test_values_whose_schemas_refer_to_others_are_decoded(lake: Lake, fake: FakeRegistry) -> None:
    currency = {"$id": "http://shop.example/currency.json", "enum": ["EUR", "USD"]}
    money = {
        "$id": "http://shop.example/money.json",
        "$schema": DRAFT_2020,
        "type": "object",
        "properties": {"amount": {"$ref": "#/$defs/amount"}, "currency": {"$ref": "currency.json"}},
        "$defs": {"amount": {"type": "integer"}},
    }
    fake.register("currency", json.dumps(currency), "JSON")
    references = [{"name": "currency.json", "subject": "currency", "version": 1}]
    fake.register("money", json.dumps(money), "JSON", references)
    order = schema(
        {
            "price": {"$ref": "http://shop.example/money.json"},
            "paid": {"type": "array", "items": {"$ref": "money.json"}},
            "amount": {"$ref": "money.json#/properties/amount"},
        },
        **{"$id": "http://shop.example/order.json"},
    )
    names = {"http://shop.example/money.json": "money", "money.json": "money"}
    number = fake.register(
        "orders-value",
        order,
        "JSON",
        [{"name": name, "subject": subject, "version": 1} for name, subject in names.items()],
    )
    value = {
        "price": {"amount": 5, "currency": "EUR"},
        "paid": [{"amount": 1, "currency": "USD"}],
        "amount": 3,
    }
    wrong = {"price": {"amount": 5, "currency": "GBP"}}
    lake.archive([framed(number, json.dumps(each).encode()) for each in (value, wrong)])

    lake.decode(format="json-schema", registry=fake.url)

    assert [value] == rows_of(lake)
    assert {1: '$.price.currency: "GBP" is not one of "EUR" or "USD"'} == lake.bad()


def test_serializer_resolves_the_same_reference(lake: Lake, fake: FakeRegistry) -> None:
    fake.register("customer", schema({"name": {"type": "string"}}), "JSON")
    text = schema({"customer": {"$ref": "customer.json"}})
    written, _ = Serializers(fake).json(
        text, {"customer": {"name": "Ada"}}, references={"customer.json": "customer"}
    )
    lake.archive([written])

    lake.decode(format="json-schema", registry=fake.url)

    assert [{"customer": {"name": "Ada"}}] == rows_of(lake)


def test_newer_version_adds_its_columns_and_each_value_is_validated_by_its_own(
    lake: Lake, fake: FakeRegistry
) -> None:
    serializers = Serializers(fake)
    old, new = {"id": {"type": "integer"}}, {"id": {"type": "integer"}, "note": {"type": "string"}}
    lake.archive([serializers.json(schema(old), {"id": 1})[0]])
    lake.decode(format="json-schema", registry=fake.url)

    lake.archive(
        [
            serializers.json(schema(new, required=["note"]), {"id": 2, "note": "n"})[0],
            serializers.json(schema(old), {"id": 3, "note": 5})[0],
            serializers.json(schema(old), {"id": 4})[0],
        ]
    )
    lake.decode(format="json-schema", registry=fake.url)

    assert [(1, None), (2, "n"), (4, None)] == lake.values("id", "note")
    assert {2: "$.note: 5 is not of type string"} == lake.bad()


def test_values_without_frames_have_the_schema_of_a_file(lake: Lake) -> None:
    (lake.folder / "order.json").write_text(
        schema({"unit price": {"type": "number"}, "more": {"type": "string"}})
    )
    lake.archive([{"unit price": 1.5, "more": "m", "unknown": 1}, {"unit price": "x"}])

    lake.decode(format="json-schema", schema_file=str(lake.folder / "order.json"), rename={"more": "note"})

    assert [(1.5, "m")] == lake.values("unit_x0020_price", "note")
    assert {1: '$.unit price: "x" is not of type "number"'} == lake.bad()


def test_fields_that_the_schema_does_not_name_may_be_bad_rows(lake: Lake) -> None:
    lake.archive([{"id": 1}, {"id": 2, "x": 1}])

    lake.decode(format="json-schema", schema=schema({"id": {"type": "integer"}}), unknown="dlq")

    assert [1] == lake.values("id")
    assert {1: "$.x: there is no column for it"} == lake.bad()


def test_timestamp_without_a_zone_may_be_one_of_utc(lake: Lake) -> None:
    lake.archive([{"at": "2026-01-31T12:00:00"}])
    text = schema({"at": {"type": "string", "format": "date-time"}})

    lake.decode(format="json-schema", schema=text, lenient="utc-if-no-zone")

    assert [dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)] == lake.values("at")


@pytest.mark.parametrize(
    "text, error",
    [
        ("{", "The JSON Schema does not parse"),
        ("[]", "The JSON Schema is not an object"),
        ('{"type": "nothing"}', "The JSON Schema cannot be used"),
        ('{"type": "string"}', "not one of objects with properties"),
        ("true", "not one of objects with properties"),
        (
            schema({"a": {"$ref": "#/definitions/a"}}),
            "cannot be used: Pointer '/definitions/a' does not exist",
        ),
        (schema({"a": {"$ref": "http://localhost:9/a"}}), "the registry has no reference of this name"),
        (schema({"a": {"type": "string"}, "A": {"type": "string"}}), "case does not count"),
        (schema({"_offset": {"type": "integer"}}), "is a column of the table's own"),
    ],
    ids=["cut", "array", "type", "string", "true", "reference", "address", "case", "reserved"],
)
def test_unusable_schema_is_refused(lake: Lake, text: str, error: str) -> None:
    lake.archive([{}])

    with pytest.raises(SchemaFault, match=error):
        lake.decode(format="json-schema", schema=text)

    assert not (lake.folder / "typed").exists()


def test_schema_of_a_subject_that_cannot_be_used_is_refused_with_the_subject(
    lake: Lake, fake: FakeRegistry
) -> None:
    lake.archive([b"x"])
    with pytest.raises(
        SchemaFault, match="no subjects/orders-value/versions/latest; give subject, or schema_file"
    ):
        lake.decode(format="json-schema", registry=fake.url)

    fake.register("orders-value", '"string"')
    with pytest.raises(SchemaFault, match="subject orders-value: The schema is one for AVRO, not for JSON"):
        lake.decode(format="json-schema", registry=fake.url)

    references = [{"name": "a.json", "subject": "a", "version": 1}]
    fake.register("orders-value", schema({"a": {"$ref": "a.json"}}), "JSON", references)
    with pytest.raises(
        SchemaFault, match="subject orders-value: the registry at .* has no subjects/a/versions/1"
    ):
        lake.decode(format="json-schema", registry=fake.url)


@pytest.mark.parametrize(
    "settings, error",
    [
        ({}, "schema_file: json-schema needs schema_file, or registry"),
        (
            {"schema": "{}", "unknown": "add"},
            "unknown: is for json: a schema of json-schema defines all columns",
        ),
        ({"schema": "{}", "numbers": "double"}, "numbers: is for json: a schema of json-schema defines"),
        ({"schema": "{}", "lenient": "round"}, "lenient: accepts only utc-if-no-zone for json-schema"),
        ({"schema": "{}", "framing": "confluent"}, "framing: 'confluent' needs the registry"),
    ],
    ids=["schema", "unknown", "numbers", "lenient", "framing"],
)
def test_contradicting_settings_are_refused(lake: Lake, settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        lake.decoding(format="json-schema", **settings)


@pytest.mark.parametrize(
    "property_, column",
    [
        ({"type": ["null", "integer", "number"]}, "double"),
        ({"enum": [1, 2, None]}, "bigint"),
        ({"enum": [1, "a"]}, "string"),
        ({"const": 1.5}, "double"),
        ({"type": "null"}, "string"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "bigint"),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]}, "string"),
        ({"type": "object", "patternProperties": {"^x": {"type": "boolean"}}}, "map<string, boolean>"),
        (
            {"properties": {"b": {"items": {"type": "array", "items": {"type": "integer"}}}}},
            "struct<b: string>",
        ),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "array<array<bigint>>"),
        ({"type": "array", "items": False}, "string"),
        ({"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}, "array<string>"),
        ({"oneOf": [{"$ref": "#/properties/x"}, {"type": "null"}]}, "bigint"),
        ({"not": {"type": "string"}}, "string"),
        ({"type": "object", "properties": {"c": False}}, "string"),
        (
            {"$id": "http://x/y.json", "$ref": "#/definitions/z", "definitions": {"z": {"type": "integer"}}},
            "bigint",
        ),
    ],
    ids=str,
)
def test_types_of_columns(property_: dict[str, Any], column: str) -> None:
    text = schema({"a": property_, "x": {"type": "integer"}}, **{"$schema": DRAFT_2020})

    assert f"a {column}, x bigint" == ddl(json_schema_fields(Documents(text)))
