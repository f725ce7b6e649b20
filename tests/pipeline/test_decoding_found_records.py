"""Record types that are found in the values of a topic get tables, each with every record once, whatever is killed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from korvet.client import Record
from korvet.config import ConfigError
from korvet.pipeline.decoding.rounds import Decoding
from korvet.pipeline.run.tables import Table
from tests.pipeline.confluent_serializers import Serializers
from tests.pipeline.decoding import Lake
from tests.pipeline.lake_runs import run_of, written
from tests.pipeline.registries import FakeRegistry
from tests.pipeline.support import Cluster
from tests.pipeline.test_decoding_records import ORDER, PAYMENT, RECORDS, REFUND, avro, decode, offsets
from tests.pipeline.test_decoding_redriving import Killed, end_at

FOUND: dict[str, Any] = {"records": ["shop.Order", "*"]}


def order(serializers: Serializers, number: int) -> bytes:
    return serializers.avro(ORDER, {"id": number})[0]


def payment(serializers: Serializers, number: int) -> bytes:
    return serializers.avro(PAYMENT, {"id": number, "amount": 0.5})[0]


def refund(serializers: Serializers, number: int) -> bytes:
    return serializers.avro(REFUND, {"id": number})[0]


def tables(lake: Lake) -> set[str]:
    """Return the typed tables, without those of bad rows."""
    return {path.name for path in (lake.folder / "typed").iterdir() if "~" not in path.name}


@pytest.mark.parametrize("strategy", ["record", "topic-record"])
def test_types_that_are_met_get_tables_with_all_their_records(
    lake: Lake, fake: FakeRegistry, strategy: str
) -> None:
    serializers = Serializers(fake, strategy=strategy)
    settings = {**FOUND, "subject_strategy": "".join(map(str.title, strategy.split("-"))) + "NameStrategy"}
    schema = '{"title": "shop.Note", "type": "object"}'
    note = serializers.json(schema, {"id": 1})[0]
    lake.archive([order(serializers, 1), payment(serializers, 2), b"x", note, payment(serializers, 3)])
    decode(lake, fake, **settings)
    lake.archive([refund(serializers, 4), payment(serializers, 5), order(serializers, 6)])

    job = decode(lake, fake, **settings)

    assert (
        {f"orders.shop.{each}" for each in ("Order", "Payment", "Refund")} == tables(lake) == {*job.progress}
    )
    assert [[0, 7], [1, 4, 6], [5]] == [
        offsets(lake, f"orders.shop.{each}") for each in ("Order", "Payment", "Refund")
    ]
    bad = {row["offset"]: row["error"] for row in lake.table("orders.shop.Order~dlq").to_pylist()}
    assert bad.keys() == {2, 3}
    assert "$: is a shop.Note, not a shop.Order" == bad[3]
    assert [[], []] == [offsets(lake, f"orders.shop.{each}~dlq") for each in ("Payment", "Refund")]


def test_types_beyond_the_bound_are_bad_rows_until_it_is_raised(
    lake: Lake, fake: FakeRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    serializers = Serializers(fake, strategy="record")
    same = avro("payment", ("id", "long"))
    lake.archive(
        [
            order(serializers, 1), refund(serializers, 2), payment(serializers, 3),
            serializers.avro(same, {"id": 4})[0],
        ]
    )  # fmt: skip
    decode(lake, fake, **FOUND, max_tables=2)

    assert (
        "no tables for the record types shop.Refund, shop.payment: their values are bad rows" in caplog.text
    )
    assert {f"orders.{name}" for name in RECORDS} == tables(lake)
    assert [1, 3] == offsets(lake, "orders.shop.Order~dlq")

    lake.archive([refund(serializers, 5)])
    decode(lake, fake, **FOUND)

    assert [1, 4] == offsets(lake, "orders.shop.Refund")
    assert [1, 3] == offsets(lake, "orders.shop.Order~dlq")


@pytest.mark.parametrize(
    "step", ["decode", "record types", "before commit", "between commits", "after commit"]
)
@pytest.mark.parametrize("number", [0, 1], ids=["first", "found"])
def test_killed_rounds_leave_no_record_out_or_twice(
    lake: Lake, fake: FakeRegistry, step: str, number: int
) -> None:
    serializers = Serializers(fake, strategy="record")
    lake.archive([order(serializers, 0), b"x", payment(serializers, 1)])
    whole = lake.decoding(format="avro", registry=fake.url, subject_strategy="RecordNameStrategy", **FOUND)
    first = Decoding(whole.specification.by_record()[0], whole.lake, whole.to, whole.distribute)
    killed = first
    if number:
        first.round()
        killed = Decoding(first.found[0], whole.lake, whole.to, whole.distribute)
    end_at(step, killed)
    with suppress(Killed):
        killed.round()
    lake.archive([payment(serializers, 2), refund(serializers, 3)])

    decode(lake, fake, **FOUND)

    names = ("Order", "Order~dlq", "Payment", "Payment~dlq", "Refund")
    assert [[0], [1], [2, 3], [], [4]] == [offsets(lake, f"orders.shop.{each}") for each in names]


@pytest.mark.parametrize("unwrapped", [False, True], ids=["at once", "in rounds"])
def test_tombstones_mark_the_rows_of_all_types_and_make_none(
    lake: Lake, fake: FakeRegistry, *, unwrapped: bool
) -> None:
    serializers = Serializers(fake, strategy="record")
    settings: dict[str, Any] = {**FOUND, "upsert": True, "deletes": "soft"}
    values = [order(serializers, 1), payment(serializers, 2), payment(serializers, 3), None, None, None]
    keys = ["a", "b", "a", "a", "c", "a"]
    for value, key in zip(values, keys, strict=True):
        lake.archive([value], keys=[key])
        if unwrapped:
            decode(lake, fake, **settings)
    decode(lake, fake, **settings)

    def rows(name: str) -> list[tuple[Any, ...]]:
        found = lake.rows(f"orders.shop.{name}")
        return [(row["_key"], row["id"], row["_offset"], row["_deleted"]) for row in found]

    assert [(b"a", 1, 5, True)] == rows("Order")
    assert [(b"b", 2, 1, None), (b"a", 3, 5, True)] == [
        (key, number, offset, deleted or None) for key, number, offset, deleted in rows("Payment")
    ]


def test_running_run_gives_a_new_type_its_tables(
    memory: Cluster, topic: str, tmp_path: Path, fake: FakeRegistry
) -> None:
    serializers = Serializers(fake, topic, strategy="record")
    memory.create(topic)
    memory.produce(topic, [Record(order(serializers, 1)), Record(b"x")])
    file = written(
        tmp_path,
        f"""
        [topics.{topic}]
        lag = "100ms"
        iceberg = true
        [topics.{topic}.decode]
        format = "avro"
        registry = "{fake.url}"
        subject_strategy = "RecordNameStrategy"
        records = ["shop.Order", "*"]
        """,
    )

    def ids(name: str) -> list[int]:
        path = str(tmp_path / "lake-typed" / f"{topic}.shop.{name}")
        if not DeltaTable.is_deltatable(path):
            return []
        return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())

    run = run_of(memory.bootstrap_servers, file)
    while ids("Order") != [1]:
        run.round()
    memory.produce(topic, [Record(payment(serializers, number)) for number in range(2, 5)])
    while ids("Payment") != [2, 3, 4]:
        run.round()
    (table,) = run.tables.values()
    assert ["shop.Order", "shop.Payment"] == records_of(table)
    assert (tmp_path / "lake-typed" / f"{topic}.shop.Payment" / "_iceberg").is_dir()
    assert (4, 1) == (table.decoded.typed, table.decoded.bad)

    memory.produce(topic, [Record(payment(serializers, 5)), Record(refund(serializers, 6))])
    again = run_of(memory.bootstrap_servers, file, once=True)
    again.run()

    assert [[1], [2, 3, 4, 5], [6]] == [ids(name) for name in ("Order", "Payment", "Refund")]
    (status,) = again.statuses
    assert [0, 0, 0] == [each.behind for each in status.typed]


def records_of(table: Table) -> list[str | None]:
    return [each.decoding.specification.record for each in table.typed]


@pytest.mark.parametrize(
    "settings, fault",
    [
        ({"records": ["*"]}, "records: needs a name before"),
        ({"records": RECORDS, "max_tables": 3}, 'max_tables: is for records with "\\*"'),
        ({"records": [*RECORDS, "*"], "max_tables": 1}, "max_tables: must be at least the number of names"),
    ],
    ids=["unnamed", "bound", "least"],
)
def test_contradicting_settings_are_refused(lake: Lake, settings: dict[str, Any], fault: str) -> None:
    given = {"format": "avro", "registry": "http://localhost:1", "subject_strategy": "RecordNameStrategy"}

    with pytest.raises(ConfigError, match=fault):
        lake.decoding(**given, **settings)
