"""The cost of growth: `python -m bench.growth`, about six minutes.

Throughput and latency with more partitions, more bytes stored, more groups. Every size has its own broker. Those of one
storage run at the same time, and each round measures one after the other. The client's work is the same at every size:
it produces batches of 100 kB to the partitions in turn, several in flight; fetches the same batches, one per request;
and sends requests with one record. So a difference between sizes is caused by the broker.
"""

from __future__ import annotations

import argparse
import datetime as dt
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import define

import korvet
from bench.command import RESULTS, machine
from bench.groups import Member
from bench.growth_load import (
    RECORD_BYTES,
    TOPIC,
    acknowledged_us,
    batch_of,
    consume,
    delivered_us,
    group_latencies_us,
    join,
    produce,
)
from bench.growth_page import as_table, write_growth
from bench.growth_results import Growth, Point
from bench.processes import SYSTEMS, Broker, broker, temporary_folder
from bench.run import settle
from tests.support.wire import await_topic, create_topic

BATCH_RECORDS, FILL_RECORDS = 900, 9_000  # 100 kB, 1 MB
GIGABYTE = 1_000_000_000
SETTLE_LIMIT_S = 240.0  # long enough to rewrite an append-only file of some gigabytes
REPETITIONS = 300
WIDE_REPETITIONS = 50  # for measurements that are slow with many partitions
PARTITIONS, STORED, GROUPS = "partitions", "GB stored", "groups"
SETTINGS = ("memory.max.bytes=20000000000", "max.connections=20000", "group.initial.rebalance.delay.ms=0")


@define
class Sized:
    """A broker of a certain size."""

    size: float
    broker: Broker
    folder: Path | None  # of an embedded server
    is_wide: bool = False  # True if its size is a number of partitions
    partitions: int = 1
    members: Sequence[Member] = ()
    _produced: int = 0  # batches; the next one goes to the next partition in turn

    def settle(self) -> None:
        if self.folder is not None:
            settle(self.folder, SETTLE_LIMIT_S)

    def measures(self, batches: int) -> Iterator[tuple[str, str, float]]:
        """Yield the name, unit and value of each measurement of one round."""
        batch, port, first = batch_of(BATCH_RECORDS), self.broker.port, self._produced
        self._produced += batches
        turns = [number % self.partitions for number in range(first, self._produced)]
        took_s, where = produce(port, batch, turns)
        yield "in", "records/s", batches * BATCH_RECORDS / took_s
        self.settle()
        yield "out", "records/s", batches * BATCH_RECORDS / consume(port, batch, where)
        yield "one record acknowledged, p50", "us", acknowledged_us(port, REPETITIONS)
        yield "produced to consumed, p50", "us", delivered_us(port, 1, REPETITIONS)
        if self.is_wide:
            all_of_them = delivered_us(port, self.partitions, WIDE_REPETITIONS)
            yield "the same, the consumer waits for all partitions", "us", all_of_them
        if self.members:
            commit_us, beat_us = group_latencies_us(self.members, REPETITIONS)
            yield "offset commit, p50", "us", commit_us
            yield "heartbeat, p50", "us", beat_us
        self.settle()


# --- Growing ----------------------------------------------------------------------------------------------


def grow_partitions(sized: Sized, _stack: ExitStack) -> None:
    sized.is_wide, sized.partitions = True, int(sized.size)
    make_topic(sized)


def grow_stored(sized: Sized, _stack: ExitStack) -> None:
    """Fill the measured partition."""
    make_topic(sized)
    batch = batch_of(FILL_RECORDS)
    produce(sized.broker.port, batch, [0] * int(sized.size * GIGABYTE / (FILL_RECORDS * RECORD_BYTES)))


def grow_groups(sized: Sized, stack: ExitStack) -> None:
    """Create groups of one member each, which stays connected and commits an offset in the first rounds."""
    make_topic(sized)
    groups = range(int(sized.size))
    sized.members = [stack.enter_context(Member(sized.broker.port, f"group-{n}")) for n in groups]
    for member in sized.members:
        join(member)


def make_topic(sized: Sized) -> None:
    create_topic(sized.broker.port, TOPIC, partitions=sized.partitions)
    await_topic(sized.broker.port, TOPIC, partitions=sized.partitions)


GROWING: dict[str, Callable[[Sized, ExitStack], None]] = {
    PARTITIONS: grow_partitions,
    STORED: grow_stored,
    GROUPS: grow_groups,
}


@contextmanager
def grown(dimension: str, system: str, size: float) -> Iterator[Sized]:
    """Run a broker of that storage and size."""
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder()) / "data" if system != "memory" else None
        storage = "memory://" if folder is None else f"embedded:{folder}"
        layout = () if folder is None else (f"storage.layout={system}",)
        started = stack.enter_context(broker(storage, *SETTINGS, *layout))
        sized = Sized(size, started, folder)
        GROWING[dimension](sized, stack)
        sized.settle()
        yield sized


def measure(growth: Growth, dimension: str, system: str, options: argparse.Namespace) -> None:
    """Measure all sizes of one storage, alternating; the first round is a warm-up."""
    with ExitStack() as stack:
        all_sizes = [stack.enter_context(grown(dimension, system, size)) for size in options.sizes[dimension]]
        for number in range(options.rounds + 1):
            for sized in all_sizes:
                for measure_, unit, figure in sized.measures(options.batches):
                    if number:
                        growth.add(Point(dimension, measure_, unit, system, sized.size), figure)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", nargs="+", type=int, default=[1, 10, 100, 1_000])
    parser.add_argument("--gigabytes", nargs="+", type=float, default=[0, 1, 10], help="stored, of values")
    parser.add_argument("--groups", nargs="+", type=int, default=[1, 100, 1_000])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["memory", "batch"])
    parser.add_argument("--only", nargs="+", choices=list(GROWING), default=list(GROWING), help="what grows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=1_000, help="of 100 kB, for one figure")
    parser.add_argument("--json", type=Path, help="where every round is kept (default bench/results/)")
    parser.add_argument(
        "--write-docs", action="store_true", help="plot to docs/growth.png, and put the table into the page"
    )
    parser.add_argument(
        "--from", type=Path, dest="saved", metavar="JSON", help="measure nothing: show that run"
    )
    options = parser.parse_args()
    options.sizes = {PARTITIONS: options.partitions, STORED: options.gigabytes, GROUPS: options.groups}
    return options


def run(options: argparse.Namespace) -> Growth:
    """Measure and save every round."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    command = f"python -m bench.growth --rounds {options.rounds}"
    growth = Growth({"date": now, **machine(), "korvet": korvet.__version__, "command": command})
    path = options.json or RESULTS / f"growth-{now.replace(':', '')}.json"
    started = time.monotonic()
    try:
        for dimension in options.only:
            for system in options.systems:
                measure(growth, dimension, system, options)
    finally:
        growth.save(path)
    print(f"\n{time.monotonic() - started:.0f} s; every round: {path}")
    return growth


def main() -> None:
    """Measure and print the results."""
    options = arguments()
    growth = Growth.load(options.saved) if options.saved else run(options)
    print(f"\n{as_table(growth)}")
    if options.write_docs:
        write_growth(growth)


if __name__ == "__main__":
    main()
