"""Upserts by columns and marked deletions, together with formats of values and keys, record types and upkeep."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, QueryBuilder
from google.protobuf import message_factory

from korvet.cli.lake.audit import command as audit
from korvet.cli.lake.compact import command as compact
from korvet.cli.lake.erase import command as erase
from korvet.cli.lake.vacuum import command as vacuum
from korvet.client import Record
from korvet.client.lake_tables import TYPED
from korvet.lake.errors import NewerFormat
from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.mirrored import FOLDER
from korvet.lake.table import LakeTable
from korvet.pipeline.decoding.auditing import audit_decoded, compared
from korvet.pipeline.decoding.expiring import drop_before
from korvet.pipeline.decoding.protobuf_schemas import compiled, message_type
from korvet.pipeline.decoding.rounds import Decoding
from korvet.pipeline.decoding.tables import DecodedTable
from korvet.pipeline.decoding.widening import Widen
from korvet.pipeline.run.reporting import report_of
from korvet.pipeline.run.schedule import State
from tests.lake.foreign_tables import rename_column
from tests.lake.iceberg_reading import newest_metadata, reading
from tests.pipeline.confluent_serializers import Serializers
from tests.pipeline.decoding import START_MS, Lake
from tests.pipeline.lake_runs import run_once, written
from tests.pipeline.registries import FakeRegistry
from tests.pipeline.support import Cluster

SOFT: dict[str, Any] = {"upsert": True, "deletes": "soft"}


def columns(**kinds: str) -> str:
    """Return the schema of nullable columns as Spark's JSON."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


def avro(name: str, **kinds: Any) -> str:
    fields = [{"name": each, "type": kind} for each, kind in kinds.items()]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def typed(lake: Lake, table: str = "orders") -> DecodedTable:
    return DecodedTable.found(lake.location("typed").child(table))


def marked(lake: Lake, *names: str, table: str = "orders") -> list[tuple[Any, ...]]:
    """Return the named columns and `_deleted` of all rows, sorted."""
    rows = lake.table(table).to_pylist()
    return sorted((*(row[name] for name in names), row["_deleted"]) for row in rows)


# --- Keys as columns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [["key_region", "key_id"], ["key_region", "id"]], ids=["keys", "both"])
def test_columns_of_keys_identify_rows(lake: Lake, key: list[str]) -> None:
    keys = [f'{{"region": "{region}", "id": {number}}}' for region in ("eu", "us") for number in (1, 2)]
    lake.archive([{"id": number, "n": number} for number in (1, 2, 1, 2)], keys=keys)
    lake.archive([{"id": 1, "n": 7}, None, None], keys=[keys[0], keys[1], "x"])

    lake.decode(
        schema=columns(id="long", n="long"),
        key_format="json",
        key_schema=columns(region="string", id="long"),
        key=key,
        **SOFT,
    )

    expected = [("eu", 1, 7, False), ("eu", 2, 2, True), ("us", 1, 1, False), ("us", 2, 2, False)]
    assert expected == marked(lake, "key_region", "key_id", "n")
    assert [6] == [*lake.bad()]


@pytest.mark.parametrize("key", ["id", "key_id"])
def test_keys_of_another_format_than_the_values_find_rows(lake: Lake, fake: FakeRegistry, key: str) -> None:
    values, keys = Serializers(fake), Serializers(fake, is_key=True)
    text = json.dumps({"title": "Key", "type": "object", "properties": {"id": {"type": "integer"}}})
    row = avro("Order", id="long", n="long")
    lake.archive(
        [*(values.avro(row, {"id": number, "n": number})[0] for number in (1, 2)), None],
        keys=[keys.json(text, {"id": number})[0] for number in (1, 2, 1)],
    )

    lake.decode(format="avro", registry=fake.url, key_format="json-schema", key=[key], **SOFT)

    assert [(1, 1, True), (2, 2, False)] == marked(lake, key, "n")


# --- Formats ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [[], ["region", "id"]], ids=["record", "columns"])
@pytest.mark.parametrize("in_headers", [False, True], ids=["before", "header"])
def test_rows_of_a_json_schema_are_marked(
    lake: Lake, fake: FakeRegistry, key: list[str], *, in_headers: bool
) -> None:
    values = Serializers(fake, in_headers=in_headers)
    keys = Serializers(fake, is_key=True, in_headers=in_headers and bool(key))
    kinds = {"region": {"type": "string"}, "id": {"type": "integer"}}
    of_keys = json.dumps({"title": "Key", "type": "object", "properties": kinds})
    of_values = json.dumps(
        {
            "title": "Order",
            "type": "object",
            "properties": {**kinds, "n": {"type": "integer"}},
            "required": ["region", "id", "n"],
        }
    )
    records = []
    for region, n in (("eu", 1), ("us", 2), ("eu", None), ("us", 3)):
        place = {"region": region, "id": 7}
        value, headers = (None, []) if n is None else values.json(of_values, {**place, "n": n})
        in_bytes, more = keys.json(of_keys, place)
        records.append((value, in_bytes, [*headers, *more]))
    lake.archive(
        [value for value, _, _ in records],
        keys=[each for _, each, _ in records],
        headers=[headers for _, _, headers in records],
    )

    lake.decode(format="json-schema", registry=fake.url, key=key, **SOFT)

    assert [("eu", 7, 1, True), ("us", 7, 3, False)] == marked(lake, "region", "id", "n")
    assert {} == lake.bad()


@pytest.mark.slow  # protoc
@pytest.mark.parametrize("key", [[], ["region", "id"]], ids=["record", "columns"])
def test_rows_of_protobuf_are_marked(lake: Lake, fake: FakeRegistry, key: list[str]) -> None:
    made = {}
    for name, more in (("Key", ""), ("Order", "int32 n = 3;")):
        text = f'syntax = "proto3"; message {name} {{ string region = 1; int64 id = 2; {more} }}'
        (lake.folder / f"{name}.proto").write_text(text)
        made[name] = message_factory.GetMessageClass(
            message_type(compiled(f"{name}.proto", lake.folder, "it"), None)
        )
    values, keys = Serializers(fake), Serializers(fake, is_key=True)
    lake.archive(
        [
            values.protobuf(made["Order"](region="eu", id=7, n=1))[0],
            values.protobuf(made["Order"](region="", id=0, n=2))[0],
            None,
            None,
        ],
        keys=[
            keys.protobuf(made["Key"](region=each, id=7 if each else 0))[0] for each in ("eu", "", "eu", "")
        ],
    )

    lake.decode(format="protobuf", registry=fake.url, key=key, **SOFT)

    assert [("", 0, 2, True), ("eu", 7, 1, True)] == marked(lake, "region", "id", "n")


# --- Record types -------------------------------------------------------------------------------------------


def test_each_record_type_is_upserted_widened_and_mirrored_by_its_own(lake: Lake, fake: FakeRegistry) -> None:
    values = Serializers(fake, strategy="record")
    order, payment = avro("Order", id="int", n="int"), avro("Payment", id="int", n="int")
    settings = {
        "format": "avro", "registry": fake.url, "subject_strategy": "RecordNameStrategy",
        "records": ["Order", "Payment"], "upsert": True, "key": ["id"],
    }  # fmt: skip

    def decode() -> None:
        whole = lake.decoding(**settings)
        for each in whole.specification.by_record():
            decoding = Decoding(each, whole.lake, whole.to, whole.distribute)
            while decoding.round() is not None:
                pass

    records = [(order, 1, 1), (payment, 1, 10), (order, 2, 2), (payment, 2, 20)]
    lake.archive([values.avro(schema, {"id": number, "n": n})[0] for schema, number, n in records])
    lake.archive([None, None], keys=['{"id": 2}', "x"])
    decode()
    wide = avro("Payment", id="int", n="long")
    lake.archive([values.avro(wide, {"id": 3, "n": 2**40})[0], values.avro(order, {"id": 1, "n": 5})[0]])
    decode()
    (bad,) = (
        row["error"] for row in lake.table("orders.Payment~dlq").to_pylist() if row["error"].startswith("$.n")
    )
    Widen(typed(lake, "orders.Payment"), {"n": "long"}).run()
    lake.archive([values.avro(wide, {"id": 1, "n": 2**41})[0], values.avro(order, {"id": 3, "n": 6})[0]])
    decode()

    assert bad.endswith("; korvet lake widen makes the column bigint")
    expected = {"Order": [(1, 5), (3, 6)], "Payment": [(1, 2**41)]}
    kinds = {}
    mirror = Mirror(PathCatalog(lake.location("typed"), FOLDER), "typed")
    for name, rows in expected.items():
        table = f"orders.{name}"
        assert rows == sorted((row["id"], row["n"]) for row in lake.table(table).to_pylist())
        mirror.update(Original.open(lake.location("typed"), table))
        query = "select id, n from {table} order by id"
        assert rows == reading(str(newest_metadata(lake.folder / "typed" / table)), query)
        kinds[name] = str(typed(lake, table).schema.field("n").type)
    assert {"Order": "int32", "Payment": "int64"} == kinds
    assert [5] == [row["offset"] for row in lake.table("orders.Order~dlq").to_pylist()]


# --- Upkeep -------------------------------------------------------------------------------------------------


@pytest.fixture
def deleted(lake: Lake) -> Lake:
    """A table of five files, in which a and c are deleted, at offsets 3 and 4 of six."""
    for value, key in zip([1, 2, 3, None, None, 6], "abcacb", strict=True):
        lake.archive([None if value is None else {"n": value}], keys=[key])
        lake.decode(schema=columns(n="long"), **SOFT)
    assert [(b"a", 1, True), (b"b", 6, False), (b"c", 3, True)] == marked(lake, "_key", "n")
    return lake


def findings(lake: Lake) -> list[str]:
    """The findings of an audit with checksums, and of a comparison with the archive."""
    archive = LakeTable.open(lake.location("raw"), lake.topic)
    dlq = DecodedTable.found(lake.location("typed").child("orders~dlq"))
    found = [*audit_decoded(typed(lake), lake.topic, checksums=True)]
    return [str(each) for each in [*found, *compared(typed(lake), dlq, archive, lake.topic)]]


def test_commands_look_after_marked_rows(deleted: Lake) -> None:
    before, place = marked(deleted, "_key", "n"), ["--lake", str(deleted.folder / "typed")]
    runner = CliRunner()

    outcomes = [
        runner.invoke(compact, place),
        runner.invoke(vacuum, place),
        runner.invoke(audit, [*place, "--checksums", "--archive", str(deleted.folder / "raw")]),
    ]

    assert [0, 0, 0] == [each.exit_code for each in outcomes], [each.output for each in outcomes]
    assert 1 == len(typed(deleted).files)
    assert before == marked(deleted, "_key", "n")
    assert [] == findings(deleted)
    deleted.archive([{"n": 7}], keys=["a"])
    deleted.decode(schema=columns(n="long"), **SOFT)
    assert (b"a", 7, False) in marked(deleted, "_key", "n")


def test_marked_rows_expire_by_the_time_of_their_deletion(deleted: Lake) -> None:
    deleted.archive([{"n": 8}], keys=["d"], timestamps_ms=[START_MS + 10_000])
    deleted.decode(schema=columns(n="long"), **SOFT)

    drop_before(typed(deleted), START_MS + 5_000)

    assert [(b"d", 8, False)] == marked(deleted, "_key", "n")
    assert [] == findings(deleted)


def test_erasing_a_key_erases_its_marked_row(deleted: Lake) -> None:
    place = ["--lake", str(deleted.folder / "raw"), "--typed", str(deleted.folder / "typed")]

    outcome = CliRunner().invoke(erase, [*place, "-t", "orders", "-k", "a", "--offline"])

    assert 0 == outcome.exit_code, outcome.output
    assert [(b"b", 6, False), (b"c", 3, True)] == marked(deleted, "_key", "n")
    assert [] == findings(deleted)


def test_table_whose_column_another_writer_has_renamed_is_neither_merged_nor_widened(deleted: Lake) -> None:
    rename_column(Path(typed(deleted).location.path), "n", "m")
    version = typed(deleted).version
    deleted.archive([None], keys=["b"])

    with pytest.raises(NewerFormat, match="has column mapping"):
        deleted.decode(schema=columns(m="long"), **SOFT)
    with pytest.raises(NewerFormat, match="has column mapping"):
        Widen(typed(deleted), {"m": "double"}).run()
    assert version == typed(deleted).version


def test_table_with_a_mapping_that_renames_no_column_is_merged_and_widened(lake: Lake) -> None:
    lake.archive([{"n": 1}, {"n": 2}], keys=["a", "b"])
    lake.decode(schema=columns(n="integer"), **SOFT)
    rename_column(Path(typed(lake).location.path), "", "")

    Widen(typed(lake), {"n": "long"}).run()
    lake.archive([{"n": 2**40}, None], keys=["a", "b"])
    lake.decode(schema=columns(n="long"), **SOFT)

    table = typed(lake)
    rows = QueryBuilder().register("rows", table.delta).execute('select n, "_deleted" from rows order by n')
    assert [(2, True), (2**40, False)] == [tuple(each.values()) for each in pa.table(rows).to_pylist()]
    assert "name" == table.delta.metadata().configuration["delta.columnMapping.mode"]


def test_run_looks_after_marked_rows_and_reports_their_table(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    file = written(
        tmp_path,
        f"""
        [topics.{topic}]
        iceberg = true
        retain_typed = "3d"
        decode = {{upsert = true, deletes = "soft", key_format = "string", key = ["key"], cluster_by = ["id"]}}
        """,
    )
    day_ms, now_ms = 86_400_000, time.time_ns() // 1_000_000
    memory.produce(topic, [Record(b'{"id": 0}', key=b"old", timestamp=now_ms - 9 * day_ms)])
    run_once(memory, file)
    values = [b'{"id": %d}' % number for number in range(1, 5)]
    memory.produce(topic, [Record(value, key=b"%d" % (n % 3)) for n, value in enumerate(values)])
    memory.produce(topic, [Record(None, key=b"1"), Record(None, key=b"none")])
    run = run_once(memory, file)

    (status,) = (each for each in run.statuses if each.topic == topic)
    assert (State.CURRENT, 0) == (status.state, status.bad)
    table = tmp_path / "lake-typed" / topic
    (reported,) = (each for each in report_of(status, is_last=False).tables if each.kind == TYPED)
    assert str(table) == reported.path
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    expected = [("0", 4, False), ("1", 2, True), ("2", 3, False), ("none", None, True)]
    assert expected == sorted((row["key"], row["id"], row["_deleted"]) for row in rows)
    query = "select key, id, _deleted_ from {table} order by key"
    assert expected == reading(newest_metadata(table), query)
