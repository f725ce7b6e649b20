"""Topics with several record types, as Confluent's serializers write them: each type has a table."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from google.protobuf import message_factory

from korvet.client import Record
from korvet.client.lake_tables import TYPED
from korvet.config import ConfigError
from korvet.lake.table import LakeTable
from korvet.pipeline.decoding.auditing import compared
from korvet.pipeline.decoding.job import DecodeJob
from korvet.pipeline.decoding.protobuf_schemas import compiled, message_type
from korvet.pipeline.decoding.redriving import redrive
from korvet.pipeline.decoding.rounds import Decoding
from korvet.pipeline.decoding.tables import DecodedTable
from korvet.pipeline.run.reporting import report_of
from korvet.pipeline.run.schedule import State
from tests.lake.catalogues import unity_server
from tests.lake.iceberg_reading import newest_metadata, reading
from tests.pipeline.confluent_serializers import Serializers
from tests.pipeline.decoding import Lake
from tests.pipeline.lake_runs import run_once, written
from tests.pipeline.registries import FakeRegistry, framed
from tests.pipeline.support import Cluster

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
RECORDS = ["shop.Order", "shop.Payment"]
BY_RECORD = {"subject_strategy": "RecordNameStrategy", "records": RECORDS}


def avro(name: str, *fields: tuple[str, Any]) -> str:
    there = [{"name": each, "type": kind} for each, kind in fields]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": there})


ORDER, PAYMENT = avro("Order", ("id", "long")), avro("Payment", ("id", "long"), ("amount", "double"))
REFUND = avro("Refund", ("id", "long"))


def decode(lake: Lake, registry: FakeRegistry, **settings: Any) -> DecodeJob:
    """Decode to the end of the archive."""
    whole = lake.decoding(**{"format": "avro", "registry": registry.url, **BY_RECORD, **settings})
    decodings = [
        Decoding(each, whole.lake, whole.to, whole.distribute) for each in whole.specification.by_record()
    ]
    job = DecodeJob(decodings)
    job.run()
    return job


def offsets(lake: Lake, table: str) -> list[int]:
    rows = lake.table(table).to_pylist()
    return sorted(row["offset" if table.endswith("~dlq") else "_offset"] for row in rows)


def findings(lake: Lake) -> list[str]:
    """The findings of a comparison with the archive."""
    archive = LakeTable.open(lake.location("raw"), lake.topic)
    typed = lake.location("typed")
    tables = [DecodedTable.found(typed.child(f"orders.{name}")) for name in RECORDS]
    dlqs = [DecodedTable.found(typed.child(f"orders.{name}~dlq")) for name in RECORDS]
    return [
        str(each)
        for table, dlq, name in zip(tables, dlqs, RECORDS, strict=True)
        for each in compared(table, dlq, archive, name)
    ]


@pytest.mark.parametrize("strategy, name", [("record", "Record"), ("topic-record", "TopicRecord")])
@pytest.mark.parametrize("in_headers", [False, True], ids=["before", "header"])
def test_each_record_type_has_a_table(
    lake: Lake, fake: FakeRegistry, strategy: str, name: str, *, in_headers: bool
) -> None:
    serializers = Serializers(fake, strategy=strategy, in_headers=in_headers)
    written = [
        serializers.avro(ORDER, {"id": 1}),
        serializers.avro(PAYMENT, {"id": 2, "amount": 1.5}),
        serializers.avro(REFUND, {"id": 3}),
        (None, []),
        (b"{}", []),
        serializers.avro(PAYMENT, {"id": 4, "amount": 2.5}),
        (framed(9, b""), []),
    ]
    lake.archive([value for value, _ in written], headers=[headers for _, headers in written])

    job = decode(lake, fake, subject_strategy=f"{name}NameStrategy")

    prefix = "orders-" if strategy == "topic-record" else ""
    assert {f"{prefix}shop.{each}" for each in ("Order", "Payment", "Refund")} == {*fake.by_subject}
    assert [{"id": 1, "_partition": 0, "_offset": 0}] == [
        {key: value for key, value in row.items() if key != "_timestamp"}
        for row in lake.rows("orders.shop.Order")
    ]
    assert [(2, 1.5), (4, 2.5)] == [(row["id"], row["amount"]) for row in lake.rows("orders.shop.Payment")]
    bad = {row["offset"]: row["error"] for row in lake.table("orders.shop.Order~dlq").to_pylist()}
    assert [2, 4, 6] == sorted(bad)
    assert "$: is a shop.Refund, not a shop.Order" == bad[2]
    assert bad[4].startswith("$: does not begin with 0 and a schema's id")
    assert "has no schemas/ids/9" in bad[6]
    assert [] == offsets(lake, "orders.shop.Payment~dlq")
    counts = {name: (each.records, each.typed, each.bad) for name, each in job.progress.items()}
    assert {"orders.shop.Order": (5, 1, 3), "orders.shop.Payment": (3, 2, 0)} == counts
    assert [] == findings(lake)


def test_version_that_does_not_fit_is_bad_in_its_own_table(lake: Lake, fake: FakeRegistry) -> None:
    serializers = Serializers(fake, strategy="record")
    changed = avro("Payment", ("id", "long"), ("amount", "string"))
    lake.archive([serializers.avro(changed, {"id": 1, "amount": "x"})[0]])
    lake.archive(
        [serializers.avro(PAYMENT, {"id": 2, "amount": 1.0})[0], serializers.avro(ORDER, {"id": 3})[0]]
    )

    decode(lake, fake)

    assert [[2], [1], []] == [
        offsets(lake, f"orders.{name}") for name in ("shop.Order", "shop.Payment", "shop.Order~dlq")
    ]
    (bad,) = lake.table("orders.shop.Payment~dlq").to_pylist()
    assert bad["error"].startswith("$: is not Avro of its schema: SchemaResolutionError")
    assert [] == findings(lake)


def test_titles_of_json_schemas_are_record_types(lake: Lake, fake: FakeRegistry) -> None:
    serializers = Serializers(fake, strategy="record")
    schemas = {
        name: json.dumps({"title": name, "type": "object", "properties": {"id": {"type": "integer"}}})
        for name in RECORDS
    }
    untitled = fake.register("untitled", "{}", "JSON")
    lake.archive(
        [serializers.json(schemas[name], {"id": number})[0] for number, name in enumerate(RECORDS)]
        + [framed(untitled, b"{}")]
    )

    decode(lake, fake, format="json-schema")

    assert [[0], [1]] == [[row["id"] for row in lake.rows(f"orders.{name}")] for name in RECORDS]
    (bad,) = lake.table("orders.shop.Order~dlq").to_pylist()
    assert f"$: schema {untitled} has no name" == bad["error"]


@pytest.mark.slow  # protoc
def test_messages_of_protobuf_are_record_types(lake: Lake, fake: FakeRegistry) -> None:
    (lake.folder / "shop.proto").write_text("""
        syntax = "proto3"; package shop;
        message Order { int64 id = 1; }
        message Payment { int64 id = 1; double amount = 2; }
    """)
    descriptors = compiled("shop.proto", lake.folder, "it")
    order, payment = (message_factory.GetMessageClass(message_type(descriptors, name)) for name in RECORDS)
    serializers = Serializers(fake, strategy="record")
    lake.archive([serializers.protobuf(each)[0] for each in (order(id=1), payment(id=2, amount=1.5))])

    decode(lake, fake, format="protobuf")

    assert [1] == [row["id"] for row in lake.rows("orders.shop.Order")]
    assert [(2, 1.5)] == [(row["id"], row["amount"]) for row in lake.rows("orders.shop.Payment")]


def test_tombstone_deletes_the_key_in_every_table(lake: Lake, fake: FakeRegistry) -> None:
    serializers = Serializers(fake, strategy="record")
    orders = [serializers.avro(ORDER, {"id": number})[0] for number in range(3)]
    payments = [serializers.avro(PAYMENT, {"id": number, "amount": 1.0})[0] for number in range(3)]
    lake.archive([*orders, *payments], keys=["a", "b", None, "a", "b", None])
    lake.archive([None, None], keys=["a", None])

    decode(lake, fake, upsert=True)

    assert [[1], [4]] == [offsets(lake, f"orders.{name}") for name in RECORDS]
    assert [[2, 7], [5]] == [offsets(lake, f"orders.{name}~dlq") for name in RECORDS]


def test_tombstones_are_kept_in_the_first_table(lake: Lake, fake: FakeRegistry) -> None:
    serializers = Serializers(fake, strategy="record")
    lake.archive(
        [serializers.avro(ORDER, {"id": 1})[0], None, serializers.avro(PAYMENT, {"id": 1, "amount": 1.0})[0]]
    )

    decode(lake, fake, tombstones="keep")

    assert [[0, 1], [2]] == [offsets(lake, f"orders.{name}") for name in RECORDS]


def test_type_that_is_named_later_has_all_its_records_and_redrive_moves_none_of_them(
    lake: Lake, fake: FakeRegistry
) -> None:
    serializers = Serializers(fake, strategy="record")
    lake.archive(
        [
            serializers.avro(ORDER, {"id": 1})[0],
            serializers.avro(PAYMENT, {"id": 2, "amount": 1.0})[0],
            serializers.avro(REFUND, {"id": 3})[0],
        ]
    )
    decode(lake, fake)
    names = [*RECORDS, "shop.Refund"]

    job = decode(lake, fake, records=names)
    done = [redrive(decoding) for decoding in job.decodings]

    assert [[0], [1], [2]] == [offsets(lake, f"orders.{name}") for name in names]
    assert [(1, 0), (0, 0), (0, 0)] == [(each.rows, each.typed) for each in done]
    assert [2] == offsets(lake, "orders.shop.Order~dlq")


def test_missing_subject_fails_its_own_table(lake: Lake, fake: FakeRegistry) -> None:
    lake.archive([Serializers(fake, strategy="record").avro(PAYMENT, {"id": 2, "amount": 1.0})[0]])

    job = decode(lake, fake)

    assert "has no subjects/shop.Order/versions/latest" in job.progress["orders.shop.Order"].error
    assert "" == job.progress["orders.shop.Payment"].error
    assert [0] == offsets(lake, "orders.shop.Payment")


def die_between_commits(lake: Lake, url: str, number: int) -> None:
    """Decode a record type in this process, and kill it (SIGKILL) between its two commits."""
    whole = lake.decoding(format="avro", registry=url, **BY_RECORD)
    chosen = whole.specification.by_record()[number]
    decoding = Decoding(chosen, whole.lake, whole.to, whole.distribute)
    decoding.on_step = lambda name: (
        os.kill(os.getpid(), signal.SIGKILL) if name == "between commits" else None
    )
    decoding.round()


@pytest.mark.slow  # processes
@pytest.mark.parametrize("number", [0, 1], ids=RECORDS)
def test_killed_round_of_one_type_is_completed(lake: Lake, fake: FakeRegistry, number: int) -> None:
    serializers = Serializers(fake, strategy="record")
    wrong = avro("Payment", ("id", "string"))
    lake.archive([serializers.avro(wrong, {"id": "x"})[0]])
    payments = [serializers.avro(PAYMENT, {"id": each, "amount": 1.0})[0] for each in range(3)]
    lake.archive([*payments, serializers.avro(ORDER, {"id": 1})[0], b"x", None])
    process = PROCESSES.Process(target=die_between_commits, args=(lake, fake.url, number))
    process.start()
    process.join(120)
    assert -signal.SIGKILL == process.exitcode

    decode(lake, fake)

    assert [[4], [1, 2, 3]] == [offsets(lake, f"orders.{name}") for name in RECORDS]
    assert [[5], [0]] == [offsets(lake, f"orders.{name}~dlq") for name in RECORDS]
    assert [] == findings(lake)


@pytest.mark.parametrize(
    "settings, fault",
    [
        ({"records": []}, "records: is missing: with RecordNameStrategy, it names the record types"),
        ({"subject_strategy": "TopicNameStrategy"}, "subject_strategy: must be RecordNameStrategy or"),
        ({"subject_strategy": "record"}, "'record' is none of TopicNameStrategy, RecordNameStrategy,"),
        ({"registry": None, "schema": ORDER}, "records: needs a registry"),
        ({"schema": ORDER}, "schema: does not go with records"),
        ({"subject": "orders"}, "subject: does not go with records: subject_strategy names the subjects"),
        ({"records": ["A", "a"]}, "records: has a name twice, for case does not count"),
        ({"records": ["A", "b/c"]}, "records: 'b/c' cannot name a folder"),
        ({"record": "A"}, "record: there is no such setting; is records meant?"),
    ],
    ids=["missing", "strategy", "unknown", "registry", "schema", "subject", "case", "folder", "record"],
)
def test_contradicting_settings_are_refused(lake: Lake, settings: dict[str, Any], fault: str) -> None:
    given = {"format": "avro", "registry": "http://localhost:1", **BY_RECORD, **settings}
    given = {name: value for name, value in given.items() if value is not None}

    with pytest.raises(ConfigError, match=fault):
        lake.decoding(**given)


def test_run_decodes_mirrors_registers_and_reports_each_table(
    memory: Cluster, topic: str, tmp_path: Path, fake: FakeRegistry
) -> None:
    serializers = Serializers(fake, topic, strategy="record")
    memory.create(topic)
    memory.produce(
        topic,
        [
            *(Record(serializers.avro(ORDER, {"id": number})[0]) for number in range(20)),
            *(Record(serializers.avro(PAYMENT, {"id": number, "amount": 0.5})[0]) for number in range(10)),
            Record(b"x"),
        ],
    )
    with unity_server() as unity:
        file = written(
            tmp_path,
            f"""
            [register]
            type = "unity"
            uri = "{unity.url}"
            catalog = "main"
            [topics.{topic}]
            iceberg = true
            [topics.{topic}.decode]
            format = "avro"
            registry = "{fake.url}"
            subject_strategy = "RecordNameStrategy"
            records = ["shop.Order", "shop.Payment"]
            """,
        )
        run = run_once(memory, file)

    name = topic.replace("-", "_").lower()
    entries = [f"typed.{name}_shop_{each}{kind}" for each in ("order", "payment") for kind in ("", "_dlq")]
    assert {f"main.{each}" for each in (f"korvet.{name}", *entries)} == unity.tables.keys()
    (status,) = (each for each in run.statuses if each.topic == topic)
    assert (State.CURRENT, 30, 1) == (status.state, status.decoded, status.bad)
    tables = [tmp_path / "lake-typed" / f"{topic}.{name}" for name in RECORDS]
    assert [str(table) for table in tables] == [each.path for each in status.typed]
    assert [0, 0] == [each.behind for each in status.typed]
    ids = [[row["id"] for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()] for table in tables]
    assert [[*range(20)], [*range(10)]] == [sorted(each) for each in ids]
    query = "select id from {table} order by id"
    there = [[row[0] for row in reading(newest_metadata(table), query)] for table in tables]
    assert [[*range(20)], [*range(10)]] == there
    reported = [each.path for each in report_of(status, is_last=False).tables if each.kind == TYPED]
    assert [str(table) for table in tables] == reported
