"""Archived records, sent into a topic again, each of them once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio
from attrs import evolve
from pyspark.sql import SparkSession

from korvet.client import EARLIEST, LATEST, Client, ConsumedRecord, Record, TopicPartition
from korvet.client.isolation import READ_COMMITTED
from korvet.lake.location import Location
from korvet.lake.table import LakeTable
from korvet.pipeline.replay import ORIGIN, Replay, Selection, Target, replay_partition
from korvet.pipeline.replay_workers import replay_all
from tests.pipeline.archiving import archived
from tests.pipeline.support import Cluster

pytestmark = pytest.mark.clients

T0 = 1_769_860_800_000


def numbered(numbers: Sequence[int]) -> list[Record]:
    return [
        Record(
            value=None if number % 10 == 9 else b"value %d" % number,
            key=b"k%d" % (number % 3),
            timestamp=T0 + number,
            headers=(("n", b"%d" % number), ("none", None)),
            partition=number % 2,
        )
        for number in numbers
    ]


def prepared(cluster: Cluster, topic: str, lake: Path, count: int = 1000) -> Replay:
    """Return a replay from an archived topic of two partitions into an empty one. Create both topics."""
    cluster.create(topic, partitions=2)
    cluster.produce(topic, numbered(range(count)))
    archived(cluster.bootstrap_servers, topic, lake)
    cluster.create(f"{topic}-again", partitions=2)
    location = Location.parse(str(lake))
    table = LakeTable.open(location, topic)
    return Replay("r1", cluster.bootstrap_servers, location, topic, table.topic_id, f"{topic}-again")


def everything(replay: Replay, partition: int) -> Selection:
    table = LakeTable.open(replay.lake, replay.topic)
    return Selection(table.start(partition) or 0, table.archived_up_to[partition])


def records_of(cluster: Cluster, topic: str) -> list[ConsumedRecord]:
    """Consume and return all committed records of a topic of two partitions."""

    async def read(client: Client) -> list[ConsumedRecord]:
        tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        starts = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
        ends = await client.list_offsets(dict.fromkeys(tps, LATEST))
        until = {tp: ends[tp].offset for tp in tps if ends[tp].offset > starts[tp].offset}
        positions = {tp: starts[tp].offset for tp in until}
        if not until:
            return []
        consumed = client.consume(positions, until=until, isolation_level=READ_COMMITTED)
        return [record async for record in consumed]

    return cluster.run(read)


def without_origin(records: Sequence[ConsumedRecord]) -> list[tuple[object, ...]]:
    return sorted(
        (r.partition, r.timestamp, r.key, r.value, tuple(h for h in r.headers if h[0] != ORIGIN))
        for r in records
    )


def numbers_in(records: Sequence[ConsumedRecord]) -> list[int]:
    return [r.timestamp - T0 for r in records]


@pytest.mark.parametrize("transactional", [False, True])
def test_replayed_records_are_equal_and_have_an_origin_header(
    cluster: Cluster, topic: str, tmp_path: Path, transactional: bool
) -> None:
    replay = evolve(prepared(cluster, topic, tmp_path), transactional=transactional)

    sent = [replay_partition(replay, number, everything(replay, number)) for number in (0, 1)]

    original, again = records_of(cluster, topic), records_of(cluster, replay.target)
    assert [(each.records, each.error) for each in sent] == [(500, ""), (500, "")]
    assert without_origin(again) == without_origin(original)
    origins = {dict(r.headers)[ORIGIN] for r in again}
    assert origins == {f"r1 {topic} {r.partition} {r.offset}".encode() for r in original}
    for number in (0, 1):
        order = numbers_in([r for r in again if r.partition == number])
        assert order == sorted(order)


@pytest.mark.parametrize("transactional", [False, True])
def test_repeated_replay_sends_no_record_again(
    memory: Cluster, topic: str, tmp_path: Path, transactional: bool
) -> None:
    replay = evolve(prepared(memory, topic, tmp_path), transactional=transactional)
    replay_partition(replay, 0, everything(replay, 0))

    again = replay_partition(replay, 0, everything(replay, 0))

    assert (again.records, again.error) == (0, "")
    assert len(records_of(memory, replay.target)) == 500


def test_records_sent_without_acknowledgement_are_found_in_the_target(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = prepared(memory, topic, tmp_path)
    monkeypatch.setattr("korvet.pipeline.replay.BATCH_RECORDS", 50)
    send = Target._send

    async def send_and_die(self: Target, *arguments: object) -> int:
        await send(self, *arguments)  # type: ignore[arg-type]
        if self.sent >= 150:
            raise OSError("killed")
        return -1

    monkeypatch.setattr(Target, "_send", send_and_die)
    first = replay_partition(replay, 0, everything(replay, 0))
    monkeypatch.setattr(Target, "_send", send)
    second = replay_partition(replay, 0, everything(replay, 0))

    assert (first.records, second.records) == (150, 350)
    assert sorted(numbers_in(records_of(memory, replay.target))) == list(range(0, 1000, 2))


@pytest.mark.parametrize("transactional", [False, True])
def test_killed_replay_resumes_without_duplicates(
    memory: Cluster, topic: str, tmp_path: Path, transactional: bool
) -> None:
    replay = evolve(prepared(memory, topic, tmp_path), transactional=transactional)
    selection = everything(replay, 0)
    program = (
        "from uuid import UUID\n"
        "import korvet.pipeline.replay as r\n"
        "from korvet.lake.location import Location\n"
        "r.BATCH_RECORDS = 10\n"
        f"replay = r.Replay('r1', {replay.bootstrap_servers!r}, Location.parse({str(tmp_path)!r}), {topic!r}, "
        f"UUID({str(replay.topic_id)!r}), {replay.target!r}, 200, "
        f"transactional={transactional})\n"
        f"r.replay_partition(replay, 0, r.Selection({selection.start}, {selection.end}))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        deadline = time.monotonic() + 60
        while not records_of(memory, replay.target) and time.monotonic() < deadline:
            pass
        process.kill()

    rest = replay_partition(replay, 0, selection)

    print(f"killed after {500 - rest.records} of 500 records")  # noqa: T201
    assert process.returncode == -signal.SIGKILL
    assert 0 < rest.records < 500
    assert sorted(numbers_in(records_of(memory, replay.target))) == list(range(0, 1000, 2))


def test_transactional_run_goes_on_where_another_one_ended(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = evolve(prepared(memory, topic, tmp_path), transactional=True)
    selection = everything(replay, 0)
    has_committed, may_go_on = threading.Event(), threading.Event()

    async def wait_between_transactions(self: Target, _began: float) -> None:
        if self.replay.rate:
            has_committed.set()
            await trio.to_thread.run_sync(may_go_on.wait)

    monkeypatch.setattr(Target, "_keep_to_rate", wait_between_transactions)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(replay_partition, evolve(replay, rate=20.0), 0, selection)
        has_committed.wait()
        rest = replay_partition(replay, 0, selection)
        may_go_on.set()

    assert rest.error == ""
    assert "A newer producer with the same transactional id has taken over." in slow.result().error
    assert 0 < rest.records < 500
    assert 500 == slow.result().records + rest.records
    assert sorted(numbers_in(records_of(memory, replay.target))) == list(range(0, 1000, 2))


def test_transactional_run_fences_another_one(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = evolve(prepared(memory, topic, tmp_path), transactional=True)
    selection = everything(replay, 0)
    has_sent, may_commit = threading.Event(), threading.Event()
    send = Target._send

    async def send_and_wait(self: Target, *arguments: object) -> int:
        offset = await send(self, *arguments)  # type: ignore[arg-type]
        if self.replay.request_timeout_s == slow.request_timeout_s:
            has_sent.set()
            await trio.to_thread.run_sync(may_commit.wait)
        return offset

    slow = evolve(replay, request_timeout_s=29.0)
    monkeypatch.setattr(Target, "_send", send_and_wait)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(replay_partition, slow, 0, selection)
        has_sent.wait()
        second = replay_partition(replay, 0, selection)
        may_commit.set()

    assert (0, 500, "") == (first.result().records, second.records, second.error)
    assert "A newer producer with the same transactional id has taken over." in first.result().error
    assert sorted(numbers_in(records_of(memory, replay.target))) == list(range(0, 1000, 2))


@pytest.mark.parametrize("transactional", [False, True])
def test_records_of_an_aborted_transaction_are_sent_again(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    replay = prepared(memory, topic, tmp_path)
    monkeypatch.setattr("korvet.pipeline.replay.BATCH_RECORDS", 50)
    send = Target._send

    async def send_and_fail(self: Target, *arguments: object) -> int:
        await send(self, *arguments)  # type: ignore[arg-type]
        if self.sent >= 150:
            raise OSError("failed")
        return -1

    monkeypatch.setattr(Target, "_send", send_and_fail)
    first = replay_partition(evolve(replay, transactional=True), 0, everything(replay, 0))
    monkeypatch.setattr(Target, "_send", send)
    second = replay_partition(evolve(replay, transactional=transactional), 0, everything(replay, 0))

    assert (first.records, second.records) == (0, 500)
    assert sorted(numbers_in(records_of(memory, replay.target))) == list(range(0, 1000, 2))


@pytest.mark.parametrize(
    "selection, expected",
    [
        ({"from_ms": T0 + 100, "until_ms": T0 + 200}, list(range(100, 200, 2))),
        ({"key": b"k1"}, [number for number in range(0, 1000, 2) if number % 3 == 1]),
    ],
)
def test_only_selected_records_are_sent(
    memory: Cluster, topic: str, tmp_path: Path, selection: dict[str, int], expected: list[int]
) -> None:
    replay = prepared(memory, topic, tmp_path)
    whole = everything(replay, 0)

    replay_partition(replay, 0, Selection(whole.start, whole.end, **selection))

    assert sorted(numbers_in(records_of(memory, replay.target))) == expected


def test_unreachable_rate_does_not_delay_the_replay(memory: Cluster, topic: str, tmp_path: Path) -> None:
    replay = evolve(prepared(memory, topic, tmp_path), rate=1e9)

    sent = replay_partition(replay, 0, everything(replay, 0))

    assert (sent.records, sent.error) == (500, "")


def test_rate_limits_the_replay(memory: Cluster, topic: str, tmp_path: Path) -> None:
    replay = evolve(prepared(memory, topic, tmp_path), rate=1000.0)
    began = time.monotonic()

    sent = replay_partition(replay, 0, everything(replay, 0))

    assert (sent.records, sent.error) == (500, "")
    assert time.monotonic() - began >= 0.5


def test_dry_run_counts_records_and_sends_none(memory: Cluster, topic: str, tmp_path: Path) -> None:
    replay = prepared(memory, topic, tmp_path)
    dry = Replay(
        "r1", replay.bootstrap_servers, replay.lake, topic, replay.topic_id, replay.target, dry_run=True
    )

    assert replay_partition(dry, 0, everything(replay, 0)).records == 500
    assert records_of(memory, replay.target) == []


def test_missing_target_topic_is_reported(memory: Cluster, topic: str, tmp_path: Path) -> None:
    replay = prepared(memory, topic, tmp_path)
    wrong = Replay("r1", replay.bootstrap_servers, replay.lake, topic, replay.topic_id, "no.such.topic")

    assert "no.such.topic" in replay_partition(wrong, 0, everything(replay, 0)).error


@pytest.mark.spark
def test_workers_replay_all_partitions(
    spark: SparkSession, memory: Cluster, topic: str, tmp_path: Path
) -> None:
    replay = prepared(memory, topic, tmp_path)

    replayed = replay_all(spark, replay, {number: everything(replay, number) for number in (0, 1)})

    assert [(each.partition, each.records, each.error) for each in replayed] == [(0, 500, ""), (1, 500, "")]
    assert without_origin(records_of(memory, replay.target)) == without_origin(records_of(memory, topic))
