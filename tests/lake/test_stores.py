"""The store contract: what korvet requires of every object store, and that tables survive a store's faults.

`make test` runs it on moto, `make conformance PARTS=stores` on fake-gcs-server and azurite as well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from deltalake import QueryBuilder

from korvet.lake.compacting import Compacted, Compaction
from korvet.lake.erasing import Erasure, key_set
from korvet.lake.errors import CommitConflict, LakeError, NoTable, Unreachable, UnsafeStore
from korvet.lake.iceberg.catalogs import open_catalogue
from korvet.lake.iceberg.mirror import Change, Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.upkeep import remove_orphans
from korvet.lake.listing import archives_in, tables_in
from korvet.lake.location import Location
from korvet.lake.mirrored import FOLDER
from korvet.lake.put_if_absent import refuse_unsafe_store
from korvet.lake.retrying import retried
from korvet.lake.table import LakeTable, refuse_other_things
from korvet.lake.vacuuming import vacuum
from korvet.lake.verification import absent, wrongs
from korvet.pipeline.decoding.auditing import audit_decoded
from korvet.pipeline.decoding.decoded_files import PartWriter
from korvet.pipeline.decoding.distributing import Here
from korvet.pipeline.decoding.expiring import drop_before
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.rounds import Decoding
from korvet.pipeline.decoding.tables import TYPED, DecodedTable, Span
from korvet.pipeline.decoding.widening import Widen
from tests.lake.stores import KINDS, Store, store_of_kind
from tests.lake.support import TOPIC, TOPIC_ID, written
from tests.pipeline.decoding import Lake

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module", params=KINDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with store_of_kind(request.param) as running:
        yield running


@pytest.fixture
def lake(store: Store) -> Location:
    return store.location(f"lake-{uuid4().hex}")


def files_in(lake: Location) -> list[str]:
    """Return the paths of all files in a location."""
    selector = pafs.FileSelector(lake.path, recursive=True, allow_not_found=True)
    infos = lake.filesystem().get_file_info(selector)
    return sorted(info.path.removeprefix(f"{lake.path}/") for info in infos if info.is_file)


def grown(table: LakeTable, times: int, key: bytes | None = None) -> LakeTable:
    """Commit as many ranges of ten records."""
    for _ in range(times):
        start = table.archived_up_to.get(0, 0)
        table = table.commit([written(table, start, start + 10, key=key)])
    return table


# --- Put if absent ------------------------------------------------------------------------------------------


def test_store_with_conditional_writes_is_accepted_and_unchanged(lake: Location) -> None:
    refuse_unsafe_store(lake)

    assert [] == files_in(lake)
    assert [] == tables_in(lake)


def test_store_without_conditional_writes_is_refused_and_unchanged(store: Store) -> None:
    with store_of_kind(store.kind, "--ignore-conditions") as careless:
        lake = careless.location(f"lake-{uuid4().hex}")

        with pytest.raises(UnsafeStore, match=rf"it ignores {lake.store.condition}\)"):
            refuse_unsafe_store(lake)
        assert [] == files_in(lake)


def test_one_of_many_simultaneous_commits_succeeds(lake: Location) -> None:
    table = LakeTable.open_or_create(lake, TOPIC, TOPIC_ID)
    ranges = [written(table, 0, 10 + number) for number in range(8)]
    handles = [LakeTable.open(lake, TOPIC) for _ in ranges]
    start = threading.Barrier(len(ranges))

    def commit(number: int) -> int | None:
        start.wait()
        try:
            handles[number].commit([ranges[number]])
        except CommitConflict:
            return None
        return 10 + number

    with ThreadPoolExecutor(len(ranges)) as writers:
        ends = [end for end in writers.map(commit, range(len(ranges))) if end is not None]

    table = LakeTable.open(lake, TOPIC)
    assert [table.archived_up_to[0]] == ends
    assert ends == [file.count for file in table.files]


# --- Listing ------------------------------------------------------------------------------------------------


def test_tables_are_listed_and_other_folders_are_not(store: Store, lake: Location) -> None:
    for name in ("bills", "orders", "ünïcode topic"):
        LakeTable.open_or_create(lake, name, uuid4())
    with lake.filesystem().open_output_stream(f"{lake.path}/other/file.txt") as stream:
        stream.write(b"no table")
    lake.filesystem().create_dir(f"{lake.path}/gone/_delta_log", recursive=True)

    assert ["bills", "orders", "ünïcode topic"] == tables_in(lake)
    assert ["bills", "orders", "ünïcode topic"] == archives_in(lake)
    with pytest.raises(NoTable, match="is not a Delta table, and not empty"):
        refuse_other_things(lake.child("other"))
    refuse_other_things(lake.child("nothing"))


def test_folder_is_deleted_with_its_files_and_nothing_beside_it(lake: Location) -> None:
    LakeTable.open_or_create(lake, "orders", uuid4())
    LakeTable.open_or_create(lake, "orders2", uuid4())

    lake.delete_folder("orders")

    assert ["orders2/_delta_log/00000000000000000000.json"] == files_in(lake)
    assert ["orders2"] == tables_in(lake)


# --- Tables -------------------------------------------------------------------------------------------------


def test_records_are_written_committed_and_read(lake: Location) -> None:
    table = LakeTable.open_or_create(lake, TOPIC, TOPIC_ID)
    other = LakeTable.open(lake, TOPIC)
    table = table.commit([written(table, 0, 10)])

    assert {0: 10} == LakeTable.open(lake, TOPIC).archived_up_to
    assert list(range(10)) == table.offsets_of(0, 0, 100).tolist()
    assert 10 == table.delta.to_pyarrow_table().num_rows
    with pytest.raises(CommitConflict):
        other.commit([written(other, 0, 10)])


def test_checkpoints_are_written_and_read(lake: Location) -> None:
    table = grown(LakeTable.open_or_create(lake, TOPIC, TOPIC_ID), 25)

    assert any("checkpoint" in each for each in files_in(lake))
    again = LakeTable.open(lake, TOPIC)
    assert ({0: 250}, table.transactions) == (again.archived_up_to, again.transactions)


def test_files_are_compacted_erased_vacuumed_and_verified(lake: Location) -> None:
    table = grown(LakeTable.open_or_create(lake, TOPIC, TOPIC_ID), 3)
    Compaction(table).run()
    erasure = Erasure(LakeTable.open(lake, TOPIC), key_set([b"nobody"]))
    erasure.run()
    table = LakeTable.open(lake, TOPIC)

    assert [30] == [file.count for file in table.files]
    assert [] == [*absent(table), *wrongs(table)]
    assert 3 == len(vacuum(table, 0))
    table = LakeTable.open(lake, TOPIC)
    assert [table.files[0].path] == [each.partition("/")[2] for each in files_in(lake) if "parquet" in each]
    assert list(range(30)) == table.offsets_of(0, 0, 100).tolist()
    table.location.delete_files([table.files[0].path])
    assert [f"{table.location}/{table.files[0].path} is not there"] == [wrong.what for wrong in absent(table)]


def test_typed_table_is_joined_expired_and_audited(lake: Location) -> None:
    schema = pa.schema(
        [
            pa.field("_partition", pa.int32()),
            pa.field("_offset", pa.int64()),
            pa.field("_timestamp", pa.timestamp("us", "UTC")),
        ]
    )
    table = DecodedTable.create(lake.child("typed"), TYPED, TOPIC, TOPIC_ID, schema)
    for offset in range(3):
        row = {"_partition": 0, "_offset": offset, "_timestamp": datetime(2026, 1, 1 + offset, tzinfo=UTC)}
        with PartWriter(table.location) as writer:
            writer.write(pa.Table.from_pylist([row], schema=schema))
        table = table.commit([Span(0, offset, offset + 1)], writer.parts)

    joins = DecodedJoins(table)
    joins.run()
    kept = drop_before(joins.table, round(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000))

    assert (1, 3) == (len(joins.table.files), joins.table.row_count)
    assert (1, 2) == (len(kept.files), kept.row_count)
    assert [] == audit_decoded(kept, "typed", checksums=True)


def test_archive_is_mirrored_to_iceberg(lake: Location, tmp_path: Path) -> None:
    archive = grown(LakeTable.open_or_create(lake, TOPIC, TOPIC_ID), 2)
    catalogue = open_catalogue(lake, None, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalogue.db"})
    mirror = Mirror(catalogue, "korvet")

    assert Change.CREATED is mirror.update(Original(archive.location, TOPIC, archive.delta)).change
    archive = grown(archive, 1)
    assert 1 == mirror.update(Original(archive.location, TOPIC, archive.delta)).added

    table = mirror.table(TOPIC)
    rows = table.scan().to_arrow()
    assert list(range(30)) == sorted(rows.column("offset").to_pylist())
    assert [] == vacuum(archive, 0, dry_run=True)
    assert 0 == remove_orphans(table, archive.location.child(FOLDER), datetime.now(UTC))


# --- Errors -------------------------------------------------------------------------------------------------


def test_missing_table_is_reported(lake: Location) -> None:
    with pytest.raises(NoTable, match=f"There is no Delta table at {lake}/bills"):
        LakeTable.open(lake, "bills")


def test_missing_bucket_is_reported_without_repetitions(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = store.location("tables", bucket="no-such-bucket")

    with pytest.raises(Unreachable, match=r"no-such-bucket.*/tables/.*: .+"):
        refuse_unsafe_store(elsewhere)
    assert not any("trying again" in each for each in caplog.messages)


def test_unreachable_store_is_reported_with_the_cause(store: Store) -> None:
    name = store.location("tables").store.endpoints[0]
    prefix = store.location("tables").store.prefixes[0]
    there = f"{prefix}{name}".upper()
    nowhere = Location.parse(store.location("tables").url, {**store.options, there: "http://127.0.0.1:1"})

    with pytest.raises(Unreachable, match="Connection refused") as raised:
        LakeTable.open(nowhere, TOPIC)
    assert "\n" not in str(raised.value)


# --- Faults -------------------------------------------------------------------------------------------------

SHARE = 0.2
SEED = 2
RANGES = 8


@pytest.mark.slow
def test_two_writers_on_a_faulty_store_commit_every_offset_once(
    store: Store, lake: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.lake.retrying.FIRST_BACKOFF_S", 0.01)
    with store_of_kind(store.kind) as faulty:
        place = Location.parse(lake.url, faulty.options)
        if store.kind == "s3":  # each moto has its own buckets
            lake = place
        retried(lambda: LakeTable.open_or_create(place, TOPIC, TOPIC_ID))
        faulty.front.inject(SHARE, SEED)
        with ThreadPoolExecutor(2) as writers:
            losses = list(writers.map(lambda _: write_all(place), range(2)))
        compacted = compaction_of(place)
        counts = dict(faulty.front.faults())
        faulty.front.inject(0, SEED)

        table = LakeTable.open(lake, TOPIC)
        print(f"{store.kind}: {counts}, failed rounds {losses}, {compacted.errors}")  # noqa: T201
        assert {0: RANGES * 10} == table.archived_up_to
        assert list(range(RANGES * 10)) == table.offsets_of(0, 0, RANGES * 20).tolist()
        assert RANGES * 10 == sum(file.count for file in table.files)
        assert [] == [*absent(table), *wrongs(table)]
    assert min(counts.values()) >= 3


def compaction_of(place: Location) -> Compacted:
    """Compact until it succeeds, as a scheduler does."""
    while True:
        try:
            return Compaction(LakeTable.open(place, TOPIC)).run()
        except Unreachable:
            continue


@pytest.mark.slow
def test_typed_table_is_upserted_widened_and_audited_on_a_faulty_store(
    store: Store, lake: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.lake.retrying.FIRST_BACKOFF_S", 0.01)
    archive = Lake(tmp_path)
    fields: list[dict[str, Any]] = [
        {"name": name, "type": "integer", "nullable": True, "metadata": {}} for name in ("id", "round", "n")
    ]
    given = {"schema": json.dumps({"type": "struct", "fields": fields}), "upsert": True, "deletes": "soft"}
    expected: dict[int, int | None] = {}
    with store_of_kind(store.kind) as faulty:
        place = Location.parse(lake.url, faulty.options)
        lake = place if store.kind == "s3" else lake
        for number in range(2):
            ids = [(7 * number + each) % 10 for each in range(5)]
            archive.archive(
                [{"id": each, "round": number, "n": 1} if each % 4 else None for each in ids],
                keys=[str(each) for each in ids],
            )
            expected |= {each: number if each % 4 else None for each in ids}
            decode_all(archive, place, given)
            faulty.front.inject(SHARE / 4, SEED)
        until_done(lambda: Widen(DecodedTable.found(place.child("orders")), {"n": "long"}).run())
        counts = dict(faulty.front.faults())
        faulty.front.inject(0, SEED)

        table = DecodedTable.found(lake.child("orders"))
        assert [] == audit_decoded(table, "orders", checksums=True)
        rows = pa.table(QueryBuilder().register("rows", table.delta).execute("select * from rows"))
        assert expected == {int(row["_key"]): row["round"] for row in rows.to_pylist()}
        assert (len(expected), pa.int64()) == (rows.num_rows, table.schema.field("n").type)
    assert sum(counts.values()) >= 3


def decode_all(archive: Lake, place: Location, given: dict[str, Any]) -> None:
    specification = archive.decoding(**given).specification
    decoding = Decoding(specification, archive.location("raw"), place, Here())
    while until_done(decoding.round) is not None:
        pass


def until_done(work: Callable[[], Any]) -> Any:
    """Call until there is no error that may pass, as a scheduler does, and return the result."""
    for _ in range(100):
        try:
            return work()
        except (Unreachable, CommitConflict, OSError) as error:
            last = error
    raise last


def write_all(place: Location) -> int:
    """Commit ranges until all are there, each from the offset of a new snapshot. Return the number of failures."""
    failures = 0
    while True:
        try:
            table = LakeTable.open(place, TOPIC)
            start = table.archived_up_to.get(0, 0)
            if start == RANGES * 10:
                return failures
            table.commit([written(table, start, start + 10)])
        except (LakeError, OSError):
            failures += 1
