"""Avro values, plain and framed, become rows of the reader's schema; fastavro made the bytes."""

from __future__ import annotations

import datetime as dt
import io
import json
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.pipeline.decoding.avro_values import AvroValues, avro_fields
from korvet.pipeline.decoding.leaves import Faults, SchemaFault
from korvet.pipeline.decoding.registry import RegistryError
from tests.pipeline.decoding import Lake
from tests.pipeline.registries import FakeRegistry, framed

pytestmark = pytest.mark.slow


def record(*fields: tuple[str, Any], name: str = "Order") -> str:
    """Return the schema of a record with fields of (name, type)."""
    return json.dumps({"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]})


def written(schema: str, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), value)
    return out.getvalue()


EVERYTHING = json.dumps(
    {
        "type": "record",
        "name": "Everything",
        "namespace": "a.b",
        "fields": [
            {"name": "flag", "type": "boolean"},
            {"name": "int", "type": "int"},
            {"name": "long", "type": ["null", "long"]},
            {"name": "float", "type": "float"},
            {"name": "double", "type": ["double", "null"]},
            {"name": "bytes", "type": "bytes"},
            {"name": "text", "type": {"type": "string", "avro.java.string": "String"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "millis", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "micros", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
            {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
            {
                "name": "money",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
            {"name": "fixed", "type": {"type": "fixed", "name": "Three", "size": 3}},
            {"name": "again", "type": ["null", "Three"]},
            {"name": "list", "type": {"type": "array", "items": ["null", "string"]}},
            {"name": "map", "type": {"type": "map", "values": "long"}},
            {"name": "number", "type": ["null", "int", "double"]},
            {
                "name": "inner",
                "type": [
                    "null",
                    {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]},
                ],
            },
        ],
    }
)


def test_every_type_has_its_column(lake: Lake) -> None:
    moment = dt.datetime(2026, 1, 31, 12, 0, 0, 5000, dt.UTC)
    value = {
        "flag": True,
        "int": -7,
        "long": 2**62,
        "float": 0.5,
        "double": 0.1,
        "bytes": b"\x00\xff",
        "text": "é",
        "day": dt.date(2026, 1, 31),
        "millis": moment,
        "micros": moment,
        "local": moment.replace(tzinfo=None),
        "time": 5,
        "money": Decimal("-1234.50"),
        "uuid": uuid.UUID(int=5),
        "colour": "BLUE",
        "fixed": b"abc",
        "again": b"def",
        "list": ["a", None],
        "map": {"k": 1},
        "number": 1.5,
        "inner": {"x": 1},
    }
    schema = lake.folder / "everything.avsc"
    schema.write_text(EVERYTHING)
    plain_times = json.loads(EVERYTHING)
    for one in plain_times["fields"]:
        if one["name"] == "time":
            one["type"] = "int"
    lake.archive([written(json.dumps(plain_times), value)])

    lake.decode(format="avro", schema_file=str(schema))

    (row,) = lake.rows()
    own = {name: row.pop(name) for name in list(row) if name.startswith("_")}
    assert {**value, "uuid": str(uuid.UUID(int=5)), "map": [("k", 1)]} == row
    assert (0, 0) == (own["_partition"], own["_offset"])


def test_values_are_resolved_from_their_writers_schema(lake: Lake, fake: FakeRegistry) -> None:
    first = fake.register("orders-value", record(("id", "int"), ("gone", "string")))
    second = fake.register(
        "orders-value",
        json.dumps(
            {
                "type": "record",
                "name": "Order",
                "fields": [
                    {"name": "number", "aliases": ["id"], "type": "long"},
                    {"name": "note", "type": ["null", "string"], "default": None},
                ],
            }
        ),
    )
    texts = [fake.by_id[number]["schema"] for number in (first, second)]
    lake.archive(
        [
            framed(first, written(texts[0], {"id": 1, "gone": "x"})),
            framed(second, written(texts[1], {"number": 2**40, "note": "n"})),
            None,
        ]
    )

    lake.decode(format="avro", registry=fake.url)

    assert [(1, None), (2**40, "n")] == lake.values("number", "note")
    assert {} == lake.bad()
    assert sorted(set(fake.asked)) == sorted(fake.asked), "an id is asked for once"


def test_newer_schema_version_in_the_registry_adds_columns(lake: Lake, fake: FakeRegistry) -> None:
    old = record(("id", "int"))
    first = fake.register("orders-value", old)
    lake.archive([framed(first, written(old, {"id": 1}))])
    lake.decode(format="avro", registry=fake.url)

    new = json.loads(record(("id", "int"), ("more", ["null", "string"])))
    new["fields"][1]["default"] = None
    second = fake.register("orders-value", json.dumps(new))
    lake.archive(
        [
            framed(second, written(json.dumps(new), {"id": 2, "more": "m"})),
            framed(first, written(old, {"id": 3})),
        ]
    )
    (result,) = lake.decode(format="avro", registry=fake.url)

    assert "more string" == result.columns
    assert [(1, None), (2, "m"), (3, None)] == lake.values("id", "more")


def test_every_kind_of_bad_value_is_reported_with_its_error(lake: Lake, fake: FakeRegistry) -> None:
    text = record(("id", "int"), ("name", "string"))
    good = fake.register("orders-value", text)
    other = fake.register("others", record(("id", "string"), ("name", "string")))
    protobuf = fake.register("third", 'syntax = "proto3"; message A {}', "PROTOBUF")
    fake.register("orders-value", text)
    whole = written(text, {"id": 1, "name": "x"})
    lake.archive(
        [
            framed(good, whole),
            b"",
            b'{"id": 1}',
            framed(77, whole),
            framed(protobuf, whole),
            framed(good, whole[:-1]),
            framed(good, whole + b"more"),
            framed(other, written(fake.by_id[other]["schema"], {"id": "1", "name": "x"})),
            framed(good, b"\xff" * 20),
        ]
    )

    lake.decode(format="avro", registry=fake.url)

    assert [1] == lake.values("id")
    expected = {
        1: "does not begin with 0 and a schema's id, or with 1 and its GUID, but with nothing",
        2: "does not begin with 0 and a schema's id, or with 1 and its GUID, but with 7b 22 69 64 22",
        3: "the registry at",
        4: "is one for PROTOBUF, not for AVRO",
        5: "is not Avro of its schema: EOFError",
        6: "goes on for 4 bytes behind the record",
        7: "is not Avro of its schema: SchemaResolutionError",
        8: "is not Avro of its schema",
    }
    bad = lake.bad()
    assert expected.keys() == bad.keys()
    for offset, result in expected.items():
        assert result in bad[offset]


def test_debezium_envelopes_in_avro_are_unwrapped(lake: Lake, fake: FakeRegistry) -> None:
    row = {
        "type": "record",
        "name": "Value",
        "fields": [{"name": "id", "type": "int"}, {"name": "old", "type": "string"}],
    }
    text = record(("before", ["null", row]), ("after", ["null", "Value"]), ("op", "string"), name="Envelope")
    number = fake.register("orders-value", text)
    changes = [
        {"before": None, "after": {"id": 1, "old": "a"}, "op": "c"},
        {"before": {"id": 1, "old": "a"}, "after": None, "op": "d"},
    ]
    lake.archive([framed(number, written(text, change)) for change in changes])

    lake.decode(format="avro", registry=fake.url, unwrap="debezium", rename={"old": "new"})

    assert [(1, "a", "c"), (1, "a", "d")] == lake.values("id", "new", "_op")


def test_registry_error_ends_the_round_and_loses_no_record(lake: Lake, fake: FakeRegistry) -> None:
    text = record(("id", "int"))
    number = fake.register("orders-value", text)
    fake.url = fake.url.replace("http://", "http://me:se%40cret@")
    lake.archive([framed(number, written(text, {"id": 1}))])
    fake.fails_with = 503

    with pytest.raises(
        RegistryError, match="answered subjects/orders-value/versions/latest with 503"
    ) as caught:
        lake.decode(format="avro", registry=fake.url)
    assert "cret" not in str(caught.value)

    fake.fails_with = None
    lake.decode(format="avro", registry=fake.url)
    assert [1] == lake.values("id")
    assert "Basic bWU6c2VAY3JldA==" == fake.credentials


@pytest.mark.parametrize(
    "url, error",
    [
        ("http://127.0.0.1:1", "does not answer"),
        ("localhost:8081", "'localhost:8081' is not a registry URL; accepted: http://host:8081"),
    ],
)
def test_unreachable_registry_is_reported(lake: Lake, url: str, error: str) -> None:
    lake.archive([b"x"])

    with pytest.raises(RegistryError, match=error):
        lake.decode(format="avro", registry=url)


def test_missing_subject_is_reported(lake: Lake, fake: FakeRegistry) -> None:
    lake.archive([b"x"])

    with pytest.raises(
        SchemaFault, match="has no subjects/orders-value/versions/latest; give subject, or schema_file"
    ):
        lake.decode(format="avro", registry=fake.url)


@pytest.mark.parametrize(
    "schema, error",
    [
        ("{", "does not parse"),
        ('"string"', "is not one of a record"),
        ('{"type": "record", "name": "A", "fields": [{"name": "x", "type": "Nobody"}]}', "does not parse"),
        (record(("x", ["int", "string"])), r"\$.x: one column cannot be a union of int, string"),
        (record(("x", "null")), r"\$.x: one column cannot be"),
        (
            json.dumps({"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}),
            r"\$.next: N holds itself",
        ),
        (
            record(("x", {"type": "bytes", "logicalType": "decimal", "precision": 40})),
            r"\$.x: decimals have at most 38 digits",
        ),
    ],
)
def test_schema_without_a_column_equivalent_is_refused(schema: str, error: str) -> None:
    with pytest.raises(SchemaFault, match=error):
        avro_fields(schema)


@given(st.binary(max_size=60))
@settings(max_examples=200)
def test_random_bytes_decode_to_a_row_or_a_fault(value: bytes) -> None:
    faults = Faults()
    (row,) = AvroValues(EVERYTHING).objects([value], faults)

    assert (row is None) == (0 in faults.by_row)


def test_wider_numbers_of_a_new_schema_go_on_where_they_fit(
    lake: Lake, fake: FakeRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = (record(("n", n), ("x", x)) for n, x in (("int", "float"), ("long", "double")))
    first = fake.register("orders-value", old)
    lake.archive([framed(first, written(old, {"n": 1, "x": 0.5}))])
    lake.decode(format="avro", registry=fake.url)
    second = fake.register("orders-value", new)
    values = [{"n": 2, "x": 1.5}, {"n": 2**40, "x": 1.5}, {"n": 3, "x": 0.1}, {"n": 4, "x": float("inf")}]
    lake.archive([framed(second, written(new, value)) for value in values])
    lake.decode(format="avro", registry=fake.url)

    assert [(1, 0.5), (2, 1.5), (4, float("inf"))] == lake.values("n", "x")
    assert {
        2: "$.n: 1099511627776 is out of range of int; korvet lake widen makes the column bigint",
        3: "$.x: 0.1 has more digits than float can hold; korvet lake widen makes the column double",
    } == lake.bad()
    assert [
        f"orders: $.{name} is {narrow} in the table and {wide} in the schema: values that fit {narrow} are written, "
        f"and others are bad rows; korvet lake widen makes it {wide}"
        for name, narrow, wide in (("n", "int", "bigint"), ("x", "float", "double"))
    ] == caplog.messages


def test_upsert_compares_keys_of_several_schema_ids(lake: Lake, fake: FakeRegistry) -> None:
    key = record(("id", "int"), name="Key")
    value = record(("a", "int"))
    number = fake.register("orders-value", value)
    old, new = (
        fake.register("orders-key", key),
        fake.register("orders-key", record(("id", "long"), name="Key")),
    )

    def archive(*rows: tuple[int, int, int]) -> None:
        lake.archive(
            [framed(number, written(value, {"a": a})) for _, _, a in rows],
            keys=[framed(each, written(key, {"id": n})) for each, n, _ in rows],
        )

    for rows in ([(old, 1, 10), (old, 2, 20), (new, 2, 21)], [(new, 1, 11), (new, 3, 30), (old, 3, 31)]):
        archive(*rows)
        lake.decode(format="avro", registry=fake.url, upsert=True)

    assert {1: 11, 2: 21, 3: 31} == {row["_key"][5] // 2: row["a"] for row in lake.rows()}
    assert 3 == len(lake.rows())


def test_tombstone_deletes_the_row_with_the_columns_of_its_avro_key(lake: Lake, fake: FakeRegistry) -> None:
    key, value = (
        record(("id", "int"), ("region", "string"), name="Key"),
        record(("region", "string"), ("id", "long"), ("a", "int")),
    )
    number, of_key = fake.register("orders-value", value), fake.register("orders-key", key)
    rows = [{"region": "eu", "id": 1, "a": 1}, {"region": "us", "id": 1, "a": 2}]
    lake.archive(
        [*(framed(number, written(value, row)) for row in rows), None, None],
        keys=[
            None,
            None,
            framed(of_key, written(key, {"id": 1, "region": "eu"})),
            b'{"id": 1, "region": "us"}',
        ],
    )
    lake.decode(format="avro", registry=fake.url, upsert=True, key=["region", "id"])

    assert [("us", 1, 2)] == lake.values("region", "id", "a")
    assert [3] == [*lake.bad()]


def test_keys_are_bytes_if_the_registry_has_no_schema_for_them(lake: Lake, fake: FakeRegistry) -> None:
    value = record(("a", "int"))
    number = fake.register("orders-value", value)
    lake.archive(
        [framed(number, written(value, {"a": a})) for a in (1, 2)], keys=[b"\0\0\0\0\1x", b"\0\0\0\0\2x"]
    )
    lake.decode(format="avro", registry=fake.url, upsert=True)

    assert 2 == len(lake.rows())


def test_framed_json_is_decoded(lake: Lake, fake: FakeRegistry) -> None:
    number, avro = fake.register("orders-value", "{}", "JSON"), fake.register("other", '"int"')
    lake.archive([framed(number, b'{"a": 1}'), framed(avro, b"{}"), framed(7, b"{}"), b'{"a": 2}'])
    lake.decode(registry=fake.url)

    assert [1] == lake.values("a")
    assert {1: f"$: schema {avro} is one for AVRO, not for JSON"} == {1: lake.bad()[1]}
    assert "has no schemas/ids/7" in lake.bad()[2]
    assert "does not begin with 0 and a schema's id" in lake.bad()[3]


def test_framed_json_without_a_registry_is_named(lake: Lake) -> None:
    lake.archive([framed(7, b'{"a": 1}'), {"a": 2}])
    lake.decode()

    assert "it begins with 0 and an id, as values with a registry's schema do" in lake.bad()[0]
