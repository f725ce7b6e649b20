"""Two mirrors that are killed again and again, while the topic grows, its archiver is killed, and files are joined."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random, SystemRandom

import pytest

from korvet.lake.compacting import Compaction
from korvet.lake.location import Location
from korvet.lake.table import LakeTable
from tests.lake.iceberg_reading import newest_metadata, rows_of_iceberg
from tests.lake.replay import rows_of
from tests.pipeline.archiving import PAUSE_S, archive_of, archived, growing, killed_at, log_of, without_times
from tests.pipeline.support import Cluster

pytestmark = pytest.mark.slow
logger = logging.getLogger(__name__)

KILLS = 4


def mirror_command(lake: Path, *more: str) -> list[str]:
    catalogue = [
        "--catalog-option",
        "type=sql",
        "--catalog-option",
        f"uri=sqlite:///{lake.parent}/catalogue.db",
    ]
    return [sys.executable, "-m", "korvet", "lake", "mirror", "--lake", str(lake), *catalogue, *more]


def test_mirrors_that_are_killed_have_every_record_once(memory: Cluster, topic: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("MIRROR_SEED") or SystemRandom().randrange(10**6))
    random = Random(seed)
    memory.create(topic)
    lake = tmp_path / "lake"
    archive = archive_of(memory.bootstrap_servers, topic, lake, every_s=PAUSE_S)
    ended = threading.Event()

    def mirror(seed: int) -> None:
        random = Random(seed)
        while not ended.is_set():
            process = subprocess.Popen(mirror_command(lake, "--every", "10ms"), stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()  # its first round is done
            ended.wait(random.uniform(0, 0.5))
            process.kill()
            process.wait()
            process.stdout.close()
            kills.append(process.pid)

    kills: list[int] = []
    with growing(memory, topic):
        archived(memory.bootstrap_servers, topic, lake)
        subprocess.run(mirror_command(lake), check=True, stdout=subprocess.DEVNULL)
        threads = [threading.Thread(target=archive.run)]
        threads += [threading.Thread(target=mirror, args=(random.random(),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        killed_at(memory.bootstrap_servers, topic, lake, "before commit", 2)
        while len(kills) < KILLS:
            ended.wait(PAUSE_S)
            Compaction(LakeTable.open(Location.parse(str(lake)), topic)).run()
        archive.stop()
        ended.set()
        for thread in threads:
            thread.join()
    archived(memory.bootstrap_servers, topic, lake)
    last = subprocess.run(mirror_command(lake), check=True, capture_output=True, text=True).stdout

    logger.info("MIRROR_SEED=%d: %d mirrors killed; %s", seed, len(kills), last)
    metadata = newest_metadata(lake / topic)
    assert rows_of(lake / topic) == rows_of_iceberg(metadata)
    assert without_times(rows_of_iceberg(metadata)) == log_of(memory, topic)
