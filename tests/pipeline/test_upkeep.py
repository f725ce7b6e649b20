"""A table that is looked after while the archiver goes on, and is killed, and consumers read it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from korvet.lake.chain import missing_stretches
from korvet.lake.compacting import Compaction
from korvet.lake.location import Location
from korvet.lake.remote import RemoteReader
from korvet.lake.table import LakeTable
from korvet.pipeline.archive_status import audit
from tests.lake.replay import rows_of
from tests.pipeline.archiving import archive_of, archived, growing, killed_at, log_of, without_times
from tests.pipeline.support import Cluster

pytestmark = pytest.mark.slow


def test_growing_topic_is_archived_compacted_and_its_archiver_killed_concurrently(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    place = Location.parse(str(tmp_path))
    archive = archive_of(memory.bootstrap_servers, topic, tmp_path, every_s=0.01)
    joined = 0
    with growing(memory, topic):
        archived(memory.bootstrap_servers, topic, tmp_path)
        thread = threading.Thread(target=archive.run)
        thread.start()
        killed_at(memory.bootstrap_servers, topic, tmp_path, "before commit", 2)
        for _ in range(5):
            joined += Compaction(LakeTable.open(place, topic)).run().files_before
        archive.stop()
        thread.join()
    archived(memory.bootstrap_servers, topic, tmp_path)

    table = LakeTable.open(place, topic)
    expected = log_of(memory, topic)
    assert joined > 0
    assert without_times(rows_of(tmp_path / topic)) == expected
    assert missing_stretches(table, 0) == []
    _, findings, failures = memory.run(lambda client: audit(client, place, [topic], checksums=True))
    assert (findings, failures) == ([], {})
    reader = RemoteReader(place)
    data, position = reader.read(topic, table.topic_id, 0, 0, table.archived_up_to[0], 2**30)
    assert data
    assert position <= table.archived_up_to[0]
