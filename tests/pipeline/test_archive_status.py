from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from korvet.cli.lake.audit import command as audit_command
from korvet.cli.lake.erase import command as erase_command
from korvet.cli.lake.status import command as status_command
from korvet.lake.location import Location
from korvet.lake.table import LakeTable
from korvet.pipeline.archive_plan import Wanted
from korvet.pipeline.archive_status import Finding, audit, status
from tests.pipeline.archiving import archived, values
from tests.pipeline.support import Cluster, delete_records


def audited(cluster: Cluster, topic: str, lake: Path) -> list[Finding]:
    """Return the findings of an audit of one topic that compares the table with the broker."""
    place = Location.parse(str(lake))
    _, findings, failures = cluster.run(lambda client: audit(client, place, [topic]))
    assert failures == {}
    return findings


def test_status_contains_the_lag_in_records_and_time(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    cluster.create(topic)
    place = Location.parse(str(tmp_path))
    cluster.produce(topic, values(5))
    archived(cluster.bootstrap_servers, topic, tmp_path)
    (before,), _ = cluster.run(lambda client: status(client, place, None))
    cluster.produce(topic, values(3, timestamp=int(time.time() * 1000) - 60_000))
    (after,), _ = cluster.run(lambda client: status(client, place, Wanted.parse(topic)))

    assert (before.lag_records, before.lag_s, before.archived_up_to) == (0, None, before.last_stable_offset)
    assert (after.lag_records, after.more) == (3, False)
    assert after.lag_s is not None
    # Under timestamp mapping the broker itself decides what the time was.
    assert 0 <= after.lag_s < 180


def test_topic_that_was_never_archived_has_no_archived_offset(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(4))
    (found,), _ = memory.run(
        lambda client: status(client, Location.parse(str(tmp_path)), Wanted.parse(topic))
    )

    assert (found.archived_up_to, found.lag_records) == (None, 4)


def test_status_reports_the_archive_of_a_recreated_topic(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, values(4))
    archived(memory.bootstrap_servers, topic, tmp_path)
    memory.run(lambda client: client.delete_topic(topic))
    shown_deleted = CliRunner().invoke(
        status_command, ["--lake", str(tmp_path), "-b", memory.bootstrap_servers, "--json"]
    )
    memory.create(topic)
    shown_again = CliRunner().invoke(
        status_command, ["--lake", str(tmp_path), "-b", memory.bootstrap_servers]
    )

    (row,) = json.loads(shown_deleted.stdout)
    assert (row["topic"], row["archived"], row["latest"]) == (topic, 4, None)
    assert shown_deleted.exit_code == 0
    assert shown_again.exit_code == 1
    assert f"{topic}: " in shown_again.stderr
    assert "deleted and created again" in shown_again.stderr


def test_audit_of_a_complete_archive_has_no_findings(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    cluster.create(topic, partitions=2)
    for first in (0, 100):
        cluster.produce(topic, values(100, first=first))
        archived(cluster.bootstrap_servers, topic, tmp_path)

    assert audited(cluster, topic, tmp_path) == []


def test_audit_lists_accepted_gaps(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    archived(memory.bootstrap_servers, topic, tmp_path)
    memory.produce(topic, values(10))
    delete_records(memory, topic, 15)
    archived(memory.bootstrap_servers, topic, tmp_path, accept_gap=True)
    where = ["--lake", str(tmp_path), "-b", memory.bootstrap_servers]
    shown = CliRunner().invoke(audit_command, where)
    listed = json.loads(CliRunner().invoke(audit_command, [*where, "--json"]).stdout)

    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        f"{topic}: 15 records, all accounted for; 1 accepted gaps",
        f"{topic}-0 offsets 10 to 14: not archived, the gap was accepted",
    ]
    assert listed["accepted_gaps"] == [{"topic": topic, "partition": 0, "start": 10, "end": 15}]


def test_audit_reports_rows_removed_by_a_restore_and_a_foreign_delete(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    for first in (0, 10, 20):
        memory.produce(topic, values(10, first=first))
        archived(memory.bootstrap_servers, topic, tmp_path)
    table = LakeTable.open(Location.parse(str(tmp_path)), topic)
    table.delta.restore(table.version - 1)
    foreign = DeltaTable(str(tmp_path / topic))
    foreign.delete('"offset" = 3')

    assert [str(finding) for finding in audited(memory, topic, tmp_path)] == [
        f"{topic}-0 offsets 3 to 3: archived, and not in the table's files",
        f"{topic}-0 offsets 20 to 29: archived, and not in the table's files",
        f"{topic}-0 offsets 3 to 29: 11 are on the broker, and not in the table",
    ]


def test_erased_records_still_on_the_broker_are_reported_without_a_finding(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    archived(memory.bootstrap_servers, topic, tmp_path)
    memory.produce(topic, values(3, first=5))
    where = ["--lake", str(tmp_path), "-t", topic, "-b", memory.bootstrap_servers]

    erased = CliRunner().invoke(erase_command, [*where, "-k", "key 6"])
    proved = CliRunner().invoke(audit_command, [*where, "--checksums"])

    told = erased.output.splitlines()
    assert told[0] == f"{topic}: 1 records erased from 1 files (partition 0: 1)"
    assert f"{topic}-0: the broker has 2 such records in its log, from offset 6 to 11" in told[-1]
    assert (proved.exit_code, proved.output) == (
        0,
        f"{topic}: 9 records, all accounted for; 1 more were erased\n",
    )
    assert audited(memory, topic, tmp_path) == []


def test_audit_names_a_damaged_file(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    archived(memory.bootstrap_servers, topic, tmp_path)
    (path,) = (tmp_path / topic).glob("date=*/*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 16
    path.write_bytes(content)

    proved = CliRunner().invoke(audit_command, ["--lake", str(tmp_path), "--offline", "--checksums"])

    first, last = proved.output.splitlines()
    assert proved.exit_code == 1
    assert first.startswith(f"{topic}-0 offsets 0 to 9: {path} is damaged: ")
    assert last == f"{topic}: 10 records, 1 findings"


def test_vacuum_removes_orphan_files_of_a_killed_archiver(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    archived(memory.bootstrap_servers, topic, tmp_path)
    (kept,) = (tmp_path / topic).glob("date=*/*.parquet")
    orphan = kept.with_name("00000-left-behind.parquet")
    orphan.write_bytes(kept.read_bytes())
    long_ago = time.time() - 30 * 86400
    os.utime(orphan, (long_ago, long_ago))
    os.utime(kept, (long_ago, long_ago))
    LakeTable.open(Location.parse(str(tmp_path)), topic).delta.vacuum(
        168, dry_run=False, enforce_retention_duration=False, full=True
    )

    assert kept.exists()
    assert not orphan.exists()
    assert audited(memory, topic, tmp_path) == []


@pytest.mark.parametrize("text", ["", " , ", "a(b"])
def test_invalid_topic_selections_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it names no topic|neither a name nor a regular expression"):
        Wanted.parse(text)
