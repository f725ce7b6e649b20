"""Values whose schema is in a registry."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from decimal import Decimal

import pytest

from korvet.client import Client, Record
from korvet.web import schemas
from korvet.web.options import PageRefused
from korvet.web.schemas import Schemas, open_schemas
from tests.pipeline.registries import FakeRegistry, framed
from tests.pipeline.registries import registry as running_registry
from tests.web.conftest import NewPage

pytestmark = pytest.mark.slow  # compiles a Protobuf schema, and needs korvet[schemas]

AVRO = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"},
    {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "raw", "type": "bytes"}]}"""
PROTO = 'syntax = "proto3"; message Outer { message Inner { string name = 1; int64 count = 2; } }'


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running_registry() as running:
        yield running


def avro(number: int) -> bytes:
    import fastavro  # noqa: PLC0415  not installed for the newest Python

    out = io.BytesIO()
    value = {"id": 7, "total": Decimal("12.50"), "raw": b"\xff"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(AVRO)), value)
    return framed(number, out.getvalue())


async def test_avro_is_shown_as_json(new_page: NewPage, client: Client, registry: FakeRegistry) -> None:
    await client.create_topic("t")
    await client.produce("t", [Record(avro(registry.register("t-value", AVRO)))])
    browser = new_page(registry=registry.url)

    for path in ("/topics/t/records", "/topics/t/records?value=schema", "/topics/t/records/0/0"):
        text = (await browser.get(path)).text
        assert "&#34;total&#34;: &#34;12.50&#34;" in text
        assert "&#34;raw&#34;: &#34;ff&#34;" in text
    assert ["/schemas/ids/100000"] == registry.asked


async def test_protobuf_is_shown_as_json(registry: FakeRegistry) -> None:
    number = registry.register("t-value", PROTO, "PROTOBUF")
    inner = framed(number, b"\x0a\x02hi\x10\x05", indexes=b"\x04\x00\x00")

    found = await open_schemas(registry.url).shown(inner, "auto")

    assert ("protobuf", '{\n  "name": "hi",\n  "count": "5"\n}') == (found.kind, found.text)


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"\0\0\0\0\x09x", "has no schemas/ids/9"),
        (b"plain", "does not begin with 0"),
        (b"", ""),
    ],
    ids=["unknown", "no-frame", "empty"],
)
async def test_other_values_are_shown_with_the_reason(
    registry: FakeRegistry, data: bytes, reason: str
) -> None:
    found = await open_schemas(registry.url).shown(data, "schema")

    assert reason in found.fault
    assert found.kind in ("hex", "text", "empty")


async def test_a_value_that_is_not_of_its_schema_is_shown_in_hex(registry: FakeRegistry) -> None:
    value = avro(registry.register("t-value", AVRO))

    for wrong in (value[:-1], value + b"\0"):
        assert "hex" == (await open_schemas(registry.url).shown(wrong, "auto")).kind
        assert "100000" in (await open_schemas(registry.url).shown(wrong, "schema")).fault


async def test_a_registry_that_does_not_answer_is_asked_once(registry: FakeRegistry) -> None:
    registry.fails_with = 500
    found = open_schemas(registry.url)

    for number in range(5):
        assert "hex" == (await found.shown(framed(number, b"\xff"), "auto")).kind

    assert 1 == len(registry.asked)


async def test_an_unknown_schema_is_asked_once(registry: FakeRegistry) -> None:
    found = open_schemas(registry.url)

    for _ in range(5):
        await found.shown(framed(3, b"\xff"), "auto")

    assert 1 == len(registry.asked)


async def test_a_large_value_is_not_decoded(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_BYTES", 10)

    found = await Schemas(registry.url).shown(framed(1, b"x" * 10), "schema")

    assert "too large" in found.fault


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "http://", "http://[", "http://h:x"])
def test_an_invalid_registry_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(PageRefused, match="registry"):
        open_schemas(url)
