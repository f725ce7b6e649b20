"""The job over several topics: one that is broken does not hold up the others; and processes that are killed."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from korvet.lake.errors import Unreachable, UnsafeStore
from korvet.lake.location import Location
from korvet.pipeline.decoding.job import DecodeJob
from korvet.pipeline.decoding.rounds import Decoding, RoundResult
from tests.lake.s3 import s3_store
from tests.pipeline.decoding import Lake, die_at

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_failing_topic_does_not_stop_other_topics(lake: Lake) -> None:
    pages, orders = Lake(lake.folder, "pages"), lake
    pages.archive([{"p": 1}, {"p": "x"}, {"p": 2}])
    orders.archive([{"a": 1}, b"{", None])
    job = DecodeJob(
        [pages.decoding(on_error="stop"), Lake(lake.folder, "none").decoding(), orders.decoding()]
    )
    job.run()

    assert [1] == orders.values("a")
    result = job.progress["orders"]
    assert (3, 1, 1, 1, ["a bigint"], "") == (
        result.records,
        result.typed,
        result.bad,
        result.tombstones,
        result.columns,
        result.error,
    )
    assert job.progress["pages"].error.startswith('pages-0 offset 1: $.p: "x" is not of type bigint')
    assert job.progress["none"].error.startswith("There is no Delta table at")


def test_transient_errors_are_retried(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.archive([{"a": 1}])
    decoding = lake.decoding()
    failures = iter([Unreachable("away"), Unreachable("still away")])
    real = Decoding.round

    def flaky(self: Decoding) -> RoundResult | None:
        for failure in failures:
            raise failure
        return real(self)

    monkeypatch.setattr(Decoding, "round", flaky)
    monkeypatch.setattr("korvet.pipeline.decoding.job.FIRST_BACKOFF_S", 0.001)
    job = DecodeJob([decoding])
    job.run()

    assert ("", [1]) == (job.progress["orders"].error, lake.values("a"))


def test_once_ends_at_the_archived_offset_of_its_start(lake: Lake) -> None:
    lake.archive([{"a": 1}])
    decoding = lake.decoding()
    decoding.once = True

    def more(step: str) -> None:
        if step == "decode":
            lake.archive([{"a": 2}])

    decoding.on_step = more
    DecodeJob([decoding]).run()

    assert [1] == lake.values("a")


def test_stopped_job_finishes_its_current_commit(lake: Lake) -> None:
    lake.archive([{"a": 1}])
    decoding = lake.decoding()
    job = DecodeJob([decoding], every_s=3600)
    decoding.on_step = lambda name: job.stop() if name == "plan" else None
    job.run()

    assert [1] == lake.values("a")


def test_tables_are_written_to_s3(lake: Lake) -> None:
    lake.archive([{"a": 1, "b": 1}, b"{", {"a": 2, "b": 2}, None, {"a": 3}], keys=["x", "y", "z", "z", "x"])
    with s3_store(conditional=True) as options:
        decodings = [lake.decoding(partition_by=["b"]), lake.decoding(upsert=True, table="latest")]
        for decoding in decodings:
            decoding.to = Location.parse("s3://lake/typed", options)
        job = DecodeJob(decodings)
        job.run()

        found = {}
        for decoding in decodings:
            for place in (decoding.typed_location, decoding.dlq_location):
                table = DeltaTable(place.url, storage_options=place.storage_options()).to_pyarrow_table()
                name = "_offset" if place is decoding.typed_location else "offset"
                found[place.url] = sorted(table.column(name).to_pylist())
    assert "" == job.progress["orders"].error
    assert {
        "s3://lake/typed/orders": [0, 2, 4],
        "s3://lake/typed/orders~dlq": [1],
        "s3://lake/typed/latest": [4],
        "s3://lake/typed/latest~dlq": [1],
    } == found


def test_store_without_conditional_writes_is_refused_before_the_first_commit(lake: Lake) -> None:
    lake.archive([{"a": 1}])
    with s3_store(conditional=False) as options:
        decoding = lake.decoding()
        decoding.to = Location.parse("s3://lake/typed", options)
        with pytest.raises(UnsafeStore):
            DecodeJob([decoding]).run()


def test_job_killed_at_every_step_decodes_each_record_of_a_growing_topic_once(
    lake: Lake, report: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes die by signal 9; what is in the tables is read with DuckDB after an independent replay."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(
        ["tests.pipeline.decoding"]
    )  # to import all of it takes longer than a round
    good, bad = [], []
    steps = ["plan", "infer", "decode", "before commit", "between commits", "after commit"]
    for step in steps:
        first = lake.next_offset()
        lake.archive([{"a": first}, b"{", {"a": first + 2, f"new{first}": "x"}])
        good += [first, first + 2]
        bad.append(first + 1)
        process = processes.Process(target=die_at, args=(step, lake))
        process.start()
        process.join(60)
        assert -signal.SIGKILL == process.exitcode
    lake.decode()

    typed, dlq = lake.folder / "typed/orders", lake.folder / "typed/orders~dlq"
    assert [(offset, offset) for offset in good] == replayed(typed, "_offset, a")
    assert [(offset,) for offset in bad] == replayed(dlq, '"offset"')
    report(f"{len(steps)} processes were killed; {len(good)} typed and {len(bad)} bad rows are there once")


def replayed(table: Path, columns: str) -> list[tuple[Any, ...]]:
    """Return columns of a table's live files, sorted. DuckDB and this function read them, not deltalake or korvet."""
    files: set[str] = set()
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            files |= {action["add"]["path"]} if "add" in action else set()
            files -= {action["remove"]["path"]} if "remove" in action else set()
    paths = [str(table / file) for file in files]
    query = f"select {columns} from read_parquet({paths}, union_by_name=true) order by 1"
    return duckdb.sql(query).fetchall()
