"""A catalogue's entry of a Delta table has its location and its columns, whoever else registers tables there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from deltalake import write_deltalake

from korvet.lake.location import Location
from korvet.lake.registration.catalogue import Change, is_same_place
from korvet.lake.registration.described import Described, catalogue_name, sql_type
from korvet.lake.registration.glue import GlueCatalogue
from korvet.lake.registration.rounds import Outcome, Rounds
from korvet.lake.registration.spark_properties import LONGEST, SCHEMA, has_columns, spark_properties
from korvet.lake.registration.target import Target, faults
from korvet.lake.table import LakeTable
from korvet.pipeline.decoding.tables import TYPED, DecodedTable
from tests.lake.catalogues import Unity, hive_metastore, unity_server
from tests.lake.s3 import s3_store
from tests.lake.support import TOPIC, TOPIC_ID, lake

#: Settings of running Hive metastores by name, as JSON: `make conformance PARTS=catalogues` starts them.
RUNNING: dict[str, dict[str, str]] = json.loads(os.environ.get("REGISTRATION_CATALOGUES", "{}"))
HIVE = [*RUNNING] or [pytest.param("hive", marks=pytest.mark.soak)]
COLUMNS = pa.schema(
    [
        pa.field("_partition", pa.int32(), nullable=False),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("item", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("parts", pa.list_(pa.struct([pa.field("n", pa.int64()), pa.field("a-b", pa.string())]))),
        pa.field("names", pa.map_(pa.string(), pa.float64())),
    ]
)
PARTS = pa.list_(
    pa.struct([pa.field("n", pa.int64()), pa.field("a-b", pa.string()), pa.field("m", pa.bool_())])
)


@pytest.fixture(scope="module")
def glue() -> Iterator[dict[str, str]]:
    with s3_store(conditional=True) as aws:
        yield {
            "type": "glue",
            "glue.endpoint": aws["AWS_ENDPOINT_URL"],
            "glue.region": aws["AWS_REGION"],
            "glue.access-key-id": aws["AWS_ACCESS_KEY_ID"],
            "glue.secret-access-key": aws["AWS_SECRET_ACCESS_KEY"],
        }


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    jars = f"{Path(pyspark.__file__).parent}/jars/*"
    with hive_metastore(tmp_path_factory.mktemp("hive"), jars) as uri:
        yield {"type": "hive", "uri": uri}


@pytest.fixture(scope="module")
def unity() -> Iterator[Unity]:
    with unity_server() as server:
        yield server


@pytest.fixture(params=["glue", "unity", *HIVE])
def target(request: pytest.FixtureRequest) -> Target:
    """Each catalogue in turn. It keeps the entries of earlier tests."""
    if request.param in RUNNING:
        return Target.of(RUNNING[request.param])
    found = request.getfixturevalue(request.param)
    return unity_target(found) if isinstance(found, Unity) else Target.of(found)


def unity_target(unity: Unity) -> Target:
    return Target.of({"type": "unity", "uri": unity.url, "catalog": "main", "token": "secret"})


@pytest.fixture
def namespace(tmp_path: Path) -> str:
    """A name of a namespace that no other test has."""
    return catalogue_name(f"n{abs(hash(str(tmp_path)))}")


@pytest.fixture
def typed(tmp_path: Path) -> DecodedTable:
    return DecodedTable.create(lake(tmp_path).child(TOPIC), TYPED, TOPIC, TOPIC_ID, COLUMNS)


def rounds(target: Target, namespace: str, at: Location) -> Rounds:
    return Rounds(target, namespace, at)


def entry(target: Target, namespace: str, at: Location) -> Any:
    """Return the entry of the topic's table."""
    return target.open().find(namespace, Described.open(at, TOPIC))


def test_entry_follows_columns_that_the_table_gains(
    target: Target, namespace: str, tmp_path: Path, typed: DecodedTable
) -> None:
    at = lake(tmp_path)
    assert Change.REGISTERED == rounds(target, namespace, at).one(TOPIC).change
    assert Change.NONE == rounds(target, namespace, at).one(TOPIC).change
    typed.with_columns([pa.field("color", pa.string()), pa.field("parts", PARTS)])
    assert not entry(target, namespace, at).is_current

    assert Outcome(f"{namespace}.orders", Change.UPDATED) == rounds(target, namespace, at).one(TOPIC)

    found = entry(target, namespace, at)
    assert (True, True) == (found.is_delta, found.is_current)
    assert is_same_place(typed.location.url, found.location)


def test_archive_and_dlq_table_are_registered_by_names_that_catalogues_accept(
    target: Target, namespace: str, tmp_path: Path
) -> None:
    at = lake(tmp_path)
    LakeTable.open_or_create(at, "Orders.eu-1", TOPIC_ID)
    write_deltalake(f"{at.path}/foreign", pa.table({"id": [1]}))
    done = Rounds(target, namespace, at, tables=lambda: ["Orders.eu-1", "foreign"], skips_others=True).round()

    assert {"Orders.eu-1": Outcome(f"{namespace}.orders_eu_1", Change.REGISTERED)} == done
    assert "orders_dlq" == catalogue_name("orders~dlq")


def test_programs_that_register_a_table_at_the_same_time_all_succeed(
    target: Target, namespace: str, tmp_path: Path, typed: DecodedTable
) -> None:
    at = lake(tmp_path)
    for columns in ([], [pa.field("color", pa.string())]):
        if columns:
            typed.with_columns(columns)
        several = [rounds(target, namespace, at) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            outcomes = [*pool.map(lambda each: each.one(TOPIC), several)]
        assert [None] * 4 == [each.error for each in outcomes]
        assert entry(target, namespace, at).is_current


def test_another_table_of_the_name_is_left_alone(
    target: Target, namespace: str, tmp_path: Path, typed: DecodedTable
) -> None:
    at, other = lake(tmp_path), lake(tmp_path / "other")
    DecodedTable.create(other.child(TOPIC), TYPED, TOPIC, TOPIC_ID, COLUMNS)
    assert rounds(target, namespace, other).one(TOPIC).error is None

    outcome = rounds(target, namespace, at).one(TOPIC)

    assert outcome.error == (
        f"{namespace}.orders is another table in the catalogue, at {other.url}/orders; choose another namespace."
    )
    assert not outcome.may_pass
    assert is_same_place(f"{other.url}/orders", entry(target, namespace, other).location)
    assert typed.version == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "hive", "uri": "thrift://127.0.0.1:1"},
        {"type": "unity", "uri": "http://127.0.0.1:1", "catalog": "main"},
        {
            "type": "glue",
            "glue.endpoint": "http://127.0.0.1:1",
            "glue.region": "eu-west-1",
            "glue.access-key-id": "a",
            "glue.secret-access-key": "b",
        },
    ],
    ids=lambda each: each["type"],
)
def test_catalogue_that_is_away_is_one_line(
    settings: dict[str, str], tmp_path: Path, typed: DecodedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    outcome = rounds(Target.of(settings), "korvet", lake(tmp_path)).one(TOPIC)

    assert outcome is not None
    assert outcome.error is not None
    assert "\n" not in outcome.error
    assert outcome.may_pass
    assert typed.version == 0


def test_refusals_of_unity_name_the_request_and_the_reason(
    unity: Unity, namespace: str, tmp_path: Path, typed: DecodedTable
) -> None:
    at = lake(tmp_path)
    unity.refused["POST tables"] = 403, {"error_code": "PERMISSION_DENIED", "message": "no right\nhere"}
    try:
        refused = rounds(unity_target(unity), namespace, at).one(TOPIC)
    finally:
        unity.refused.clear()
    other = Target.of({"type": "unity", "uri": f"{unity.url}/api/2.1/unity-catalog/", "catalog": "dev"})
    absent = rounds(other, namespace, at).one(TOPIC)

    api = f"{unity.url}/api/2.1/unity-catalog"
    assert f"POST {api}/tables was answered with 403: no right here." == refused.error
    assert f"POST {api}/schemas was answered with 404: there is no catalog dev." == absent.error
    assert "Bearer secret" in unity.tokens
    assert typed.version == 0


def test_unity_has_the_columns_as_spark_describes_them(
    unity: Unity, namespace: str, tmp_path: Path, typed: DecodedTable
) -> None:
    assert rounds(unity_target(unity), namespace, lake(tmp_path)).one(TOPIC).error is None

    found = unity.tables[f"main.{namespace}.orders"]

    assert ("EXTERNAL", "DELTA", typed.location.url) == (
        found["table_type"],
        found["data_source_format"],
        found["storage_location"],
    )
    assert [
        ("_partition", "INT", "int"),
        ("_offset", "LONG", "bigint"),
        ("item", "STRING", "string"),
        ("price", "DECIMAL", "decimal(10,2)"),
        ("at", "TIMESTAMP", "timestamp"),
        ("local", "TIMESTAMP_NTZ", "timestamp_ntz"),
        ("parts", "ARRAY", "array<struct<n:bigint,a-b:string>>"),
        ("names", "MAP", "map<string,double>"),
    ] == [(each["name"], each["type_name"], each["type_text"]) for each in found["columns"]]
    price = found["columns"][3]
    assert (10, 2, 3) == (price["type_precision"], price["type_scale"], price["position"])
    assert {"name": "price", "type": "decimal(10,2)", "nullable": True, "metadata": {}} == json.loads(
        price["type_json"]
    )


def test_glue_has_the_columns_and_keeps_properties_of_others(
    glue: dict[str, str], namespace: str, tmp_path: Path, typed: DecodedTable
) -> None:
    at = lake(tmp_path)
    target = Target.of(glue)
    assert rounds(target, namespace, at).one(TOPIC).error is None
    client = GlueCatalogue(glue)._client
    found = client.get_table(DatabaseName=namespace, Name="orders")["Table"]
    storage = found["StorageDescriptor"]
    assert ("DELTA", "delta", "TRUE") == tuple(
        found["Parameters"][name] for name in ("table_type", "spark.sql.sources.provider", "EXTERNAL")
    )
    assert {"Name": "parts", "Type": "array<struct<n:bigint,a-b:string>>"} in storage["Columns"]
    assert {"Name": "local", "Type": "timestamp"} in storage["Columns"]
    theirs = {**found["Parameters"], "team": "blue"}
    client.update_table(
        DatabaseName=namespace,
        TableInput={"Name": "orders", "StorageDescriptor": storage, "Parameters": theirs},
    )

    typed.with_columns([pa.field("color", pa.string())])
    assert Change.UPDATED == rounds(target, namespace, at).one(TOPIC).change

    found = client.get_table(DatabaseName=namespace, Name="orders")["Table"]
    assert "blue" == found["Parameters"]["team"]
    assert {"Name": "color", "Type": "string"} in found["StorageDescriptor"]["Columns"]


def test_long_schema_is_split_as_spark_does(tmp_path: Path) -> None:
    columns = pa.schema([pa.field(f"column_{number}", pa.string()) for number in range(100)])
    DecodedTable.create(lake(tmp_path).child(TOPIC), TYPED, TOPIC, TOPIC_ID, columns)

    table = Described.open(lake(tmp_path), TOPIC)
    properties = spark_properties(table)

    parts = [properties[f"{SCHEMA}.part.{number}"] for number in range(int(properties[f"{SCHEMA}.numParts"]))]
    assert LONGEST == len(parts[0])
    assert table.schema == "".join(parts)
    assert SCHEMA not in properties
    assert has_columns(properties, table)
    assert not has_columns({**properties, f"{SCHEMA}.part.9": ""}, table)


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, ["type: is missing; accepted are hive, glue, unity"]),
        ({"type": "hve"}, ["type: there is no 'hve'; accepted are hive, glue, unity"]),
        ({"type": "hive"}, ["uri: is missing; hive needs it"]),
        (
            {"type": "hive", "uri": "http://host"},
            ["uri: 'http://host' is not a URL such as thrift://metastore:9083"],
        ),
        (
            {"type": "hive", "uri": "thrift://host:port"},
            ["uri: 'thrift://host:port' is not a URL such as thrift://metastore:9083"],
        ),
        (
            {"type": "glue", "glue.regoin": "x"},
            ["glue.regoin: there is no such setting; is glue.region meant?"],
        ),
        (
            {"type": "unity", "uri": "https://host", "warehouse": "x"},
            [
                "warehouse: there is no such setting; unity has uri, catalog, token",
                "catalog: is missing; unity needs it",
            ],
        ),
    ],
)
def test_settings_that_name_no_catalogue_are_refused(given: dict[str, str], expected: list[str]) -> None:
    assert expected == [f"{name}: {reason}" for name, reason in faults(given)]


def test_types_have_the_names_of_sql() -> None:
    struct = {
        "type": "struct",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "decimal(5,1)"}],
    }
    kind = {
        "type": "map",
        "keyType": "short",
        "valueType": {"type": "array", "elementType": struct, "containsNull": True},
    }
    assert "map<smallint,array<struct<a:bigint,b:decimal(5,1)>>>" == sql_type(kind)


@pytest.mark.parametrize(
    "one, other, expected",
    [
        ("s3a://bucket/lake/orders/", "s3://bucket/lake/orders", True),
        ("file:/lake/orders", "file:///lake/orders", True),
        ("file:///lake/a%20b", "file:///lake/a b", True),
        ("s3://bucket/lake/orders", "gs://bucket/lake/orders", False),
        ("", "file:///lake", False),
    ],
)
def test_urls_of_the_same_folder_are_equal(one: str, other: str, *, expected: bool) -> None:
    assert expected == is_same_place(one, other)
