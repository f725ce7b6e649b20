from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from korvet.client import Record, Topic, TopicPartition
from korvet.lake.chain import missing_stretches
from korvet.lake.errors import UnsafeStore
from korvet.lake.location import Location
from korvet.lake.table import Gap, LakeTable
from korvet.lake.verification import wrongs
from korvet.pipeline.archive import Archive
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tests.clients.transactional import TransactionalConfluent
from tests.lake.replay import rows_of
from tests.lake.s3 import s3_store
from tests.pipeline.archiving import (
    STEPS,
    archive_of,
    archived,
    growing,
    killed_at,
    log_of,
    values,
    without_times,
)
from tests.pipeline.support import Cluster
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server


def table_of(lake: Path, topic: str) -> LakeTable:
    return LakeTable.open(Location.parse(str(lake)), topic)


def test_every_record_is_in_the_table_once_with_equal_bytes(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create(topic, partitions=3)
    cluster.produce(topic, values(500))
    archived(cluster.bootstrap_servers, topic, tmp_path)
    cluster.produce(topic, values(300, first=500))
    archive = archived(cluster.bootstrap_servers, topic, tmp_path)

    assert without_times(rows_of(tmp_path / topic)) == log_of(cluster, topic)
    assert archive.progress[topic].records == 300
    assert archive.progress[topic].lag == 0
    assert all(missing_stretches(table_of(tmp_path, topic), partition) == [] for partition in range(3))


def test_decided_transactions_are_archived_and_the_others_counted(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create(topic)
    cluster.produce(topic, values(10))
    with TransactionalConfluent(cluster.bootstrap_servers, f"{topic}-1") as producer:
        producer.transact(topic, b"committed 1", b"committed 2")
        producer.transact(topic, b"aborted 1", b"aborted 2", b"aborted 3", commit=False)
        producer.begin()
        producer.send(topic, b"open")
        cluster.produce(topic, values(10, first=10))
        first = archived(cluster.bootstrap_servers, topic, tmp_path)
        before = [row.value for row in rows_of(tmp_path / topic)]
        producer.end(commit=True)
    eventually_read(cluster, topic, 23)
    second = archived(cluster.bootstrap_servers, topic, tmp_path)

    decided = [b"value %d" % number for number in range(10)] + [b"committed 1", b"committed 2"]
    assert decided == before
    assert (12, 3, 2) == counted(first, topic)
    assert [*decided, b"open", *(b"value %d" % number for number in range(10, 20))] == [
        row.value for row in rows_of(tmp_path / topic)
    ]
    assert (11, 0, 1) == counted(second, topic)
    assert without_times(rows_of(tmp_path / topic)) == log_of(cluster, topic)
    assert [] == list(wrongs(table_of(tmp_path, topic)))
    assert [] == missing_stretches(table_of(tmp_path, topic), 0)


def counted(archive: Archive, topic: str) -> tuple[int, int, int]:
    progress = archive.progress[topic]
    return progress.records, progress.aborted, progress.markers


def eventually_read(cluster: Cluster, topic: str, count: int) -> None:
    """Wait until so many records are committed: EndTxn is answered before the markers are written."""
    deadline = time.monotonic() + 20
    while len(log_of(cluster, topic)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_large_backlog_is_split_into_a_piece_for_each_core(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(60_000))
    archived(memory.bootstrap_servers, topic, tmp_path, cores=3)

    table = table_of(tmp_path, topic)
    assert [(file.first_offset, file.last_offset) for file in table.files] == [
        (0, 19_999),
        (20_000, 39_999),
        (40_000, 59_999),
    ]
    assert [row.offset for row in rows_of(tmp_path / topic)] == list(range(60_000))


def test_null_keys_values_and_headers_are_archived(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    headers = [("a", b"1"), ("a", None), ("", b""), ("a", b"1")]
    memory.produce(topic, [Record(None), Record(b"", key=b""), Record(b"x", headers=headers)])
    archived(memory.bootstrap_servers, topic, tmp_path)

    assert [row[4:] for row in rows_of(tmp_path / topic)] == [
        (None, None, ()),
        (b"", b"", ()),
        (None, b"x", tuple(headers)),
    ]


def test_timestamps_out_of_range_are_kept_as_milliseconds(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    times = [0, -1, 2**62, -(2**62), 253_402_300_799_999, 253_402_300_800_000, 1_769_860_800_000]
    memory.produce(topic, [Record(b"x", timestamp=time) for time in times])
    archived(memory.bootstrap_servers, topic, tmp_path)

    rows = table_of(tmp_path, topic).delta.to_pyarrow_table().sort_by("offset").to_pylist()
    assert [row["timestamp_ms"] for row in rows] == times
    assert [None if row["date"] is None else str(row["date"]) for row in rows] == [
        "1970-01-01", "1969-12-31", None, None, "9999-12-31", None, "2026-01-31",
    ]  # fmt: skip
    assert [row["timestamp"] is None for row in rows] == [row["date"] is None for row in rows]


def test_large_records_are_archived(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic, max_message_bytes=str(20_000_000))
    large = bytes(range(256)) * 40_000
    memory.produce(topic, [Record(large), Record(b"small"), Record(large)])
    archived(memory.bootstrap_servers, topic, tmp_path)

    assert [row.value for row in rows_of(tmp_path / topic)] == [large, b"small", large]


def test_empty_topic_has_a_table_with_archived_offset_0(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic, partitions=2)
    archived(memory.bootstrap_servers, topic, tmp_path)

    assert table_of(tmp_path, topic).archived_up_to == {0: 0, 1: 0}


@pytest.mark.slow
def test_hundreds_of_partitions_with_a_record_each(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic, partitions=300)
    memory.produce(topic, [Record(b"%d" % number, partition=number) for number in range(300)])
    archived(memory.bootstrap_servers, topic, tmp_path)

    assert [(row.partition, row.value) for row in rows_of(tmp_path / topic)] == [
        (n, b"%d" % n) for n in range(300)
    ]


def test_new_topics_of_a_pattern_are_archived_in_the_next_round(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(f"{topic}.a")
    archive = archive_of(memory.bootstrap_servers, rf"{topic}\..*", tmp_path, every_s=1)
    archive.round()
    memory.create(f"{topic}.b", partitions=2)
    memory.produce(f"{topic}.b", values(10))
    archive.round()

    assert len(rows_of(tmp_path / f"{topic}.b")) == 10
    assert set(archive.progress) == {f"{topic}.a", f"{topic}.b"}


def test_failing_topic_does_not_stop_other_topics(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(f"{topic}.good")
    memory.create(f"{topic}.bad")
    memory.produce(f"{topic}.good", values(10))
    (tmp_path / f"{topic}.bad").mkdir()
    (tmp_path / f"{topic}.bad" / "notes.txt").write_text("mine")
    archive = archived(memory.bootstrap_servers, f"{topic}.good,{topic}.bad,{topic}.none", tmp_path)

    assert len(rows_of(tmp_path / f"{topic}.good")) == 10
    assert "is not a Delta table" in archive.progress[f"{topic}.bad"].error
    assert archive.progress[f"{topic}.none"].error == f"There is no topic {topic}.none."
    assert archive.progress[f"{topic}.good"].error == ""


def test_recreated_topic_is_not_mixed_with_its_old_archive(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(5))
    archived(memory.bootstrap_servers, topic, tmp_path)
    memory.run(lambda client: client.delete_topic(topic))
    memory.create(topic)
    memory.produce(topic, values(9))
    archive = archived(memory.bootstrap_servers, topic, tmp_path)

    assert "deleted and created again" in archive.progress[topic].error
    assert len(rows_of(tmp_path / topic)) == 5


def trim(cluster: Cluster, topic: str, offset: int) -> None:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
            )
        ],
        timeout_ms=1000,
    )
    answer = cluster.run(lambda client: client.request(request, DeleteRecordsResponse))
    assert answer.topics[0].partitions[0].error_code == 0


def test_offsets_trimmed_before_they_were_archived_are_reported(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    archived(memory.bootstrap_servers, topic, tmp_path)
    memory.produce(topic, values(10))
    trim(memory, topic, 15)
    archive = archived(memory.bootstrap_servers, topic, tmp_path)

    assert f"{topic}-0 offsets 10 to 14 cannot be archived" in archive.progress[topic].error
    assert table_of(tmp_path, topic).archived_up_to == {0: 10}


@pytest.mark.servers
def test_trimming_archived_records_leaves_no_gap_under_timestamp_mapping(
    record_timestamp: Cluster, topic: str, tmp_path: Path
) -> None:
    record_timestamp.create(topic)
    record_timestamp.produce(topic, values(10))
    archived(record_timestamp.bootstrap_servers, topic, tmp_path)
    trim(record_timestamp, topic, table_of(tmp_path, topic).archived_up_to[0])
    record_timestamp.produce(topic, values(5))
    archive = archived(record_timestamp.bootstrap_servers, topic, tmp_path)

    assert archive.progress[topic].error == ""
    assert len(rows_of(tmp_path / topic)) == 15


def test_accepted_gap_is_recorded_and_the_rest_archived(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    archived(memory.bootstrap_servers, topic, tmp_path)
    memory.produce(topic, values(10))
    trim(memory, topic, 15)
    archive = archived(memory.bootstrap_servers, topic, tmp_path, accept_gap=True)

    assert archive.progress[topic].error == ""
    assert [row.offset for row in rows_of(tmp_path / topic)] == [*range(10), *range(15, 20)]
    assert table_of(tmp_path, topic).gaps == [Gap(0, 10, 15)]


def test_archive_commits_its_offsets_to_a_group(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, values(7))
    archived(memory.bootstrap_servers, topic, tmp_path)

    offsets = memory.run(lambda client: client.committed("korvet-lake"))
    assert offsets[TopicPartition(topic, 0)].offset == 7


# --- Killed, and more than one ----------------------------------------------------------------------------


@pytest.mark.slow
def test_archiver_killed_at_every_step_loses_and_duplicates_no_record(
    memory: Cluster, topic: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    memory.create(topic, partitions=2)
    kills = 0
    with growing(memory, topic):
        for number in (1, 2):
            for step in STEPS:
                killed_at(memory.bootstrap_servers, topic, tmp_path, step, number)
                kills += 1
    archived(memory.bootstrap_servers, topic, tmp_path)

    rows = rows_of(tmp_path / topic)
    assert without_times(rows) == log_of(memory, topic)
    report(f"{kills} kills -9 of the archiver, {len(rows):,} records, each once in the table")


@pytest.mark.slow
def test_two_concurrent_archivers_write_each_record_once(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic, partitions=2)
    archives = [archive_of(memory.bootstrap_servers, topic, tmp_path, every_s=0.001) for _ in range(2)]
    threads = [threading.Thread(target=archive.run) for archive in archives]
    with growing(memory, topic):
        for thread in threads:
            thread.start()
        # Which of the two commits first in a round is chance: one may be overtaken for hundreds of rounds.
        while (
            not all(committed := [records_of(archive, topic) for archive in archives]) or sum(committed) < 600
        ):
            threads[0].join(0.02)
            assert all(thread.is_alive() for thread in threads)
    for archive in archives:
        archive.stop()
    for thread in threads:
        thread.join()
    archived(memory.bootstrap_servers, topic, tmp_path)

    assert without_times(rows_of(tmp_path / topic)) == log_of(memory, topic)


def records_of(archive: Archive, topic: str) -> int:
    """Return how many records of a topic an archive has committed."""
    return archive.progress[topic].records if archive.progress else 0


def test_archiver_continues_after_the_commits_of_another_archiver(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    first = archive_of(memory.bootstrap_servers, topic, tmp_path, every_s=1)
    first.round()
    memory.produce(topic, values(10, first=10))
    archived(memory.bootstrap_servers, topic, tmp_path)
    memory.produce(topic, values(10, first=20))
    first.round()

    assert [row.value for row in rows_of(tmp_path / topic)] == [f"value {n}".encode() for n in range(30)]


def test_records_committed_concurrently_by_another_archiver_are_not_lost(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    first = archive_of(memory.bootstrap_servers, topic, tmp_path, every_s=1)
    first.round()
    open_table = Archive._open

    def open_after_another(archive: Archive, described: Topic) -> LakeTable:
        monkeypatch.setattr(Archive, "_open", open_table)
        memory.produce(topic, values(10, first=10))
        archived(memory.bootstrap_servers, topic, tmp_path)
        return archive._open(described)

    monkeypatch.setattr(Archive, "_open", open_after_another)
    first.round()

    assert first.progress[topic].error == ""
    assert [row.value for row in rows_of(tmp_path / topic)] == [f"value {n}".encode() for n in range(20)]


@pytest.mark.servers
def test_archive_to_a_store_with_conditional_writes(memory: Cluster, topic: str) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    with s3_store(conditional=True) as options:
        lake = Location.parse("s3://lake/tables", options)
        archived(memory.bootstrap_servers, topic, lake)

        assert LakeTable.open(lake, topic).delta.to_pyarrow_table().num_rows == 10


@pytest.mark.servers
def test_store_without_conditional_writes_is_refused_before_the_first_write(
    memory: Cluster, topic: str
) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    with s3_store(conditional=False) as options, pytest.raises(UnsafeStore):
        archived(memory.bootstrap_servers, topic, Location.parse("s3://lake/tables", options))


@pytest.mark.servers
@pytest.mark.slow
def test_archiver_loses_no_record_when_the_broker_is_killed_and_restarted(topic: str, tmp_path: Path) -> None:
    server = start_server(VALKEY)
    broker = KorvetProcess(storage=server.url)
    try:
        broker.start()
        cluster = Cluster(broker.bootstrap_servers, is_dense=False)
        cluster.create(topic, partitions=2)
        cluster.produce(topic, values(300))
        archive = archive_of(broker.bootstrap_servers, topic, tmp_path, every_s=0.01)
        running = threading.Thread(target=archive.run)
        running.start()
        for first in (300, 600):
            while not archive.progress or archive.progress[topic].records < first:
                running.join(0.02)
                assert running.is_alive()
            broker.kill()
            broker.start()
            cluster.produce(topic, values(300, first=first))
        while archive.progress[topic].records < 900:
            running.join(0.02)
            assert running.is_alive()
        archive.stop()
        running.join()

        assert without_times(rows_of(tmp_path / topic)) == log_of(cluster, topic)
        assert len(rows_of(tmp_path / topic)) == 900
    finally:
        if broker.process is not None:
            broker.stop()
        server.remove()
