"""Schema ids before values and in headers, as Confluent's serializers write them."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from tests.pipeline.confluent_serializers import Serializers
from tests.pipeline.decoding import Lake
from tests.pipeline.registries import FakeRegistry, guid

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
JSON = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})


@pytest.mark.parametrize("form", ["avro", "json-schema", "json"])
def test_ids_before_values_and_in_headers_are_of_one_topic(lake: Lake, fake: FakeRegistry, form: str) -> None:
    written = []
    for number, in_headers in enumerate([False, True, True]):
        serializers = Serializers(fake, in_headers=in_headers)
        value = {"id": number}
        written.append(serializers.avro(AVRO, value) if form == "avro" else serializers.json(JSON, value))
    assert [["__value_schema_id"]] * 2 == [[name for name, _ in headers] for _, headers in written[1:]]
    lake.archive([value for value, _ in written], headers=[headers or None for _, headers in written])

    lake.decode(format=form, registry=fake.url)

    assert [0, 1, 2] == lake.values("id")
    assert {} == lake.bad()
    assert f"/schemas/guids/{guid(100_000)}" in fake.asked


def test_number_in_a_header_and_guid_before_a_value_are_accepted(lake: Lake, fake: FakeRegistry) -> None:
    number = fake.register("orders-value", JSON, "JSON")
    by_guid = b"\x01" + UUID(guid(number)).bytes
    by_number = b"\0" + number.to_bytes(4, "big")
    lake.archive(
        [b'{"id": 1}', by_guid + b'{"id": 2}', by_number + b'{"id": 3}', None],
        headers=[
            [("other", b"x"), ("__value_schema_id", by_number), ("__value_schema_id", b"later")],
            [("__key_schema_id", by_number)],
            [("__value_schema_id", None)],
            [("__value_schema_id", by_guid)],
        ],
    )

    lake.decode(format="json-schema", registry=fake.url)

    assert [1, 2, 3] == lake.values("id")
    assert {} == lake.bad()


def test_header_without_a_known_id_is_a_fault(lake: Lake, fake: FakeRegistry) -> None:
    number = fake.register("orders-value", AVRO)
    by_number = b"\0" + number.to_bytes(4, "big")
    unknown = b"\x01" + bytes(16)
    headers = [b"", b"\0\0", by_number + b"\0", unknown, by_number]
    lake.archive([b"\x02"] * 5, headers=[[("__value_schema_id", each)] for each in headers])

    lake.decode(format="avro", registry=fake.url)

    assert [1] == lake.values("id")
    bad = lake.bad()
    begins = (
        "header __value_schema_id: does not begin with 0 and a schema's id, or with 1 and its GUID, but with"
    )
    assert [f"{begins} nothing", f"{begins} 00 00"] == [bad[0], bad[1]]
    assert "header __value_schema_id: goes on for 1 bytes behind the schema's id" == bad[2]
    assert f"has no schemas/guids/{UUID(int=0)}" in bad[3]
    assert 4 == len(bad)


def test_rows_of_the_dlq_table_keep_their_headers_and_are_decoded_again(
    lake: Lake, fake: FakeRegistry
) -> None:
    from korvet.pipeline.decoding.redriving import redrive  # noqa: PLC0415

    fake.register("orders-value", JSON, "JSON")
    later = fake.register("other", JSON + " ", "JSON")
    schema = fake.by_id.pop(later)
    header = b"\x01" + UUID(guid(later)).bytes
    lake.archive([b'{"id": 1}', b'{"id": 2}'], headers=[[("__value_schema_id", header)]] * 2)
    lake.decode(format="json-schema", registry=fake.url)
    assert [0, 1] == list(lake.bad())

    fake.by_id[later] = schema
    assert 2 == redrive(lake.decoding(format="json-schema", registry=fake.url)).typed

    assert [1, 2] == lake.values("id")
    assert {} == lake.bad()
