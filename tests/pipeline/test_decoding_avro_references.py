"""Avro schemas that refer to other schemas of the registry."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from korvet.lake.errors import LakeError
from korvet.pipeline.decoding.avro_references import whole_schema
from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.registry import Registry, Schema
from tests.pipeline.decoding import Lake
from tests.pipeline.registries import FakeRegistry, framed

CURRENCY = {"type": "enum", "name": "Currency", "namespace": "shop.base", "symbols": ["EUR", "USD"]}
MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "shop",
    "fields": [{"name": "amount", "type": "long"}, {"name": "currency", "type": "shop.base.Currency"}],
}
ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "Money"},
        {"name": "paid", "type": ["null", {"type": "array", "items": "shop.Money"}]},
        {"name": "other", "type": {"type": "map", "values": "shop.base.Currency"}},
    ],
}


def reference(name: str, subject: str) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": 1}


def registered(fake: FakeRegistry, order: dict[str, Any] = ORDER) -> int:
    """Register an order that refers to money, which refers to a currency. Return the order's id."""
    if "currency" not in fake.by_subject:
        fake.register("currency", json.dumps(CURRENCY))
        fake.register("money", json.dumps(MONEY), references=[reference("shop.base.Currency", "currency")])
    return fake.register("orders-value", json.dumps(order), references=[reference("shop.Money", "money")])


def written(value: dict[str, Any], *, order: dict[str, Any] = ORDER) -> bytes:
    """Write a value with fastavro's own handling of types in other schemas."""
    named: dict[str, Any] = {}
    for each in (CURRENCY, MONEY):
        fastavro.parse_schema(each, named_schemas=named)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(order, named_schemas=named), value)
    return out.getvalue()


VALUE = {
    "id": 1,
    "price": {"amount": 5, "currency": "EUR"},
    "paid": [{"amount": 3, "currency": "USD"}, {"amount": 2, "currency": "EUR"}],
    "other": {"a": "USD"},
}


def test_values_whose_schemas_refer_to_others_are_decoded(tmp_path: Path, fake: FakeRegistry) -> None:
    lake = Lake(tmp_path)
    old = registered(fake)
    wider = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "-"}]}
    new = registered(fake, wider)
    lake.archive(
        [framed(old, written(VALUE)), framed(new, written({**VALUE, "id": 2, "note": "n"}, order=wider))]
    )

    lake.decode(format="avro", registry=fake.url)

    rows = [{name: row[name] for name in (*VALUE, "note")} for row in lake.rows()]
    assert [{**VALUE, "other": [("a", "USD")], "note": "-"}, "n"] == [rows[0] | {}, rows[1]["note"]]
    assert {} == lake.bad()


def test_type_is_defined_once_and_named_afterwards(fake: FakeRegistry) -> None:
    source = Registry(fake.url)
    whole = json.loads(whole_schema(source, source.by_id(registered(fake))))

    assert "shop" == whole["namespace"]
    assert MONEY["fields"][0] == whole["fields"][1]["type"]["fields"][0]
    assert ["null", {"type": "array", "items": "shop.Money"}] == whole["fields"][2]["type"]
    assert "shop.base.Currency" == whole["fields"][3]["type"]["values"]


def test_schema_without_references_is_unchanged(fake: FakeRegistry) -> None:
    assert " {} " == whole_schema(Registry(fake.url), Schema(" {} ", "AVRO", ()))


def test_missing_reference_is_reported(tmp_path: Path, fake: FakeRegistry) -> None:
    lake = Lake(tmp_path)
    lake.archive([b"x"])
    fake.register("orders-value", json.dumps(ORDER), references=[reference("shop.Money", "money")])

    with pytest.raises(
        (SchemaFault, LakeError), match="orders-value: the registry at .* has no subjects/money"
    ):
        lake.decode(format="avro", registry=fake.url)


def test_reference_to_a_schema_without_a_name_is_refused(fake: FakeRegistry) -> None:
    fake.register("money", '"long"')
    number = fake.register("orders-value", json.dumps(ORDER), references=[reference("shop.Money", "money")])
    source = Registry(fake.url)

    with pytest.raises(SchemaFault, match=r"shop\.Money refers to a schema that has no name: money"):
        whole_schema(source, source.by_id(number))
