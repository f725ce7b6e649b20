"""The lake of many topics: `python -m bench.lake` times what `korvet lake` does with it besides Spark's work.

By default 50 topics with 4 partitions each are archived in 10 rounds, so the logs have 500 commits. The tables are made
by rounds of `korvet lake run` with workers in this process. The figures are seconds of wall time, and beside them those
of the CPU in this process: the best of some repetitions, with warm imports.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from attrs import define, frozen

from korvet.cli.lake.options import opened_tables
from korvet.client import Client, Record, open_client
from korvet.lake.location import Location
from korvet.lake.table import LakeTable
from korvet.pipeline.archive import Workers
from korvet.pipeline.archive_status import audit, status
from korvet.pipeline.archive_task import Outcome, Piece
from korvet.pipeline.run.runner import Run
from korvet.pipeline.views import Lake, named_sources
from tests.pipeline.lake_runs import run_of
from tests.processes import KorvetProcess

REPETITIONS = 3
PARTITIONS = 4


@frozen
class Took:
    """Seconds that some work took: of the clock, and of the CPU in this process."""

    clock_s: float
    cpu_s: float

    @classmethod
    def of(cls, work: Callable[[], object], times: int = REPETITIONS) -> Took:
        """Run the work several times, and return the best time."""
        found = []
        for _ in range(times):
            clock_s, cpu_s = time.perf_counter(), time.process_time()
            work()
            found.append((time.perf_counter() - clock_s, time.process_time() - cpu_s))
        return cls(*min(found))


@define
class TimedWorkers:
    """Workers whose tasks are timed. In a real run they are Spark's."""

    workers: Workers
    took: Took = Took(0, 0)

    @property
    def cores(self) -> int:
        return self.workers.cores

    def run(self, tasks: Sequence[Sequence[Piece]]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        self.took = Took.of(lambda: outcomes.extend(self.workers.run(tasks)), times=1)
        return outcomes


def measured(topics: int, commits: int) -> dict[str, Took]:
    """Make the lake, and time each kind of work on it."""
    names = [f"topic-{number:02d}" for number in range(topics)]
    with TemporaryDirectory(prefix="korvet-lake-") as folder, KorvetProcess() as broker:
        file = Path(folder) / "lake.toml"
        file.write_text(f"lake = '{folder}/lake'\n[topics.'topic-.*']\nlag = '100ms'\njoin = false\n")
        location = Location.parse(f"{folder}/lake")

        def asked(work: Callable[[Client], Any]) -> Any:
            async def main() -> Any:
                async with open_client(broker.bootstrap_servers) as client:
                    return await work(client)

            return trio.run(main)

        async def create(client: Client) -> None:
            for name in names:
                await client.create_topic(name, partitions=PARTITIONS)

        async def produce(client: Client) -> None:
            for name in names:
                for partition in range(PARTITIONS):
                    await client.produce(name, [Record(b"value", partition=partition)])

        def grow() -> Run:
            asked(produce)
            run = run_of(broker.bootstrap_servers, file, once=True)
            run.round()
            return run

        async def audited(client: Client | None) -> Any:
            tables = {
                name: table for name, table in opened_tables(location).items() if isinstance(table, LakeTable)
            }
            return await audit(client, location, list(tables), tables)

        asked(create)
        for _ in range(commits):
            grow()
        run = run_of(broker.bootstrap_servers, file)
        run.round()
        found = {
            "a round without records": Took.of(run.round),
            "status": Took.of(lambda: asked(lambda client: status(client, location, None))),
            "audit --offline": Took.of(lambda: trio.run(audited, None)),
            "audit": Took.of(lambda: asked(audited)),
            "planning a query": Took.of(lambda: named_sources(Lake(location), f"select * from `{names[0]}`")),
        }
        asked(produce)
        timed = TimedWorkers(run.workers)
        run = Run(run.file, run.connecting, run.places, timed, once=True)
        whole = Took.of(run.round, times=1)
        found["a round with a record in each partition"] = whole
        found["  without the workers' tasks"] = Took(
            whole.clock_s - timed.took.clock_s, whole.cpu_s - timed.took.cpu_s
        )
        return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.lake", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--commits", type=int, default=10, help="commits of each topic")
    options = parser.parse_args()
    topics, commits = options.topics, options.commits
    print(f"{topics} topics, {topics * PARTITIONS} partitions, {topics * commits} commits")
    for name, took in measured(topics, commits).items():
        print(f"{name:42} {took.clock_s:6.2f} s {took.cpu_s:6.2f} s CPU")


if __name__ == "__main__":
    main()
