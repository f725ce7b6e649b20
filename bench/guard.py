"""A quick check for regressions: `make bench-guard`, half a minute, without compiler and Java.

Every figure is compared with a floor measured in the same minute (a loopback echo; raw pipelined Redis), and their
ratios are comparable between days. `--remember` stores the ratios as usual ones (bench/guard.json). Ratios that are 1.5
times worse than usual are marked. The check never fails.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench import floor
from bench.cases import BATCH, ECHO, FLOORS, MEMORY, RAW_BATCH, lower
from bench.growth_load import RECORD_BYTES, TOPIC, acknowledged_us, batch_of, consume, produce
from bench.processes import Broker, plain_valkey, temporary_folder
from bench.report import Case, Results, figure
from bench.run import settle, started
from tests.support.wire import await_topic, create_topic

USUAL = Path(__file__).with_name("guard.json")
BATCH_RECORDS = 9_000
BATCHES = 60
MEGABYTE = 1_000_000
REPETITIONS = 500
# The approximate size of a request with one record.
MESSAGE_BYTES = 250
#: Ratios are marked if they are worse than usual by this factor.
WORSE = 1.5

IN = Case("in", "records/s")
OUT = Case("out", "records/s")
PRODUCED = lower("one record acknowledged, p50", "us")


def floors(results: Results, raw: floor.RawRedis, echo_port: int) -> None:
    """Measure one round of the floors."""
    records = BATCHES * BATCH_RECORDS
    echoed = floor.echo(echo_port, records=records, record_bytes=RECORD_BYTES)
    results.add(IN, ECHO, echoed)
    results.add(OUT, ECHO, echoed)
    results.add(PRODUCED, ECHO, floor.echo_round_trip_us(echo_port, size=MESSAGE_BYTES, count=REPETITIONS))
    shape = {"records": records, "record_bytes": RECORD_BYTES, "batch_bytes": MEGABYTE, "partitions": 1}
    results.add(IN, RAW_BATCH, raw.write_batches(**shape))
    results.add(OUT, RAW_BATCH, raw.read_batches(**shape))
    raw.forget(partitions=1)
    results.add(PRODUCED, RAW_BATCH, raw.append_round_trip_us(record_bytes=MESSAGE_BYTES, count=REPETITIONS))
    raw.forget(partitions=1)


def brokers(results: Results, system: str, running: Broker) -> None:
    """Measure one round of a broker."""
    batch, records = batch_of(BATCH_RECORDS), BATCHES * BATCH_RECORDS
    took_s, where = produce(running.port, batch, [0] * BATCHES)
    results.add(IN, system, records / took_s)
    results.add(OUT, system, records / consume(running.port, batch, where))
    results.add(PRODUCED, system, acknowledged_us(running.port, REPETITIONS))


def measure(rounds: int) -> Results:
    """Measure everything, alternating; the first round is a warm-up."""
    results = Results(about={}, goals={}, floors=FLOORS)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder()) / "data"
        raw = floor.RawRedis(stack.enter_context(plain_valkey()))
        echo_port = stack.enter_context(floor.echo_server())
        running = {system: stack.enter_context(started(system, folder)) for system in (MEMORY, BATCH)}
        for at in running.values():
            create_topic(at.port, TOPIC)
            await_topic(at.port, TOPIC, partitions=1)
        for number in range(rounds + 1):
            noted = results if number else results.quietly()
            floors(noted, raw, echo_port)
            for system, at in running.items():
                brokers(noted, system, at)
                settle(folder)
    return results


def ratios(results: Results) -> Iterator[tuple[Case, str, float]]:
    """Yield each case of a broker with its ratio to the floor: 1 is as fast, 0.5 half as fast."""
    for case in results.cases:
        for system in (MEMORY, BATCH):
            ratio = results.ratio(case, system, FLOORS[system])
            if ratio is not None:
                yield case, system, ratio if case.higher_is_better else 1 / ratio


def report(results: Results, usual: dict[str, float]) -> Iterator[str]:
    """Yield a line for each ratio."""
    yield f"{'case':<30} {'system':<22} {'median':>12} {'of floor':>9} {'usually':>9}"
    for case, system, ratio in ratios(results):
        usually = usual.get(f"{case.name}, {system}")
        note = "" if usually is None or ratio * WORSE >= usually else f"  {usually / ratio:.1f} times slower"
        yield (
            f"{case.name:<30} {system:<22} {figure(results.median(case, system) or 0):>12} {ratio:>9.3f}"
            f" {'' if usually is None else f'{usually:.3f}':>9}{note}"
        )


def main() -> None:
    """Measure, and print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--remember", action="store_true", help=f"keep the ratios in bench/{USUAL.name}")
    options = parser.parse_args()
    results = measure(options.rounds)
    usual = json.loads(USUAL.read_text()) if USUAL.exists() else {}
    print("\n" + "\n".join(report(results, usual)))
    if options.remember:
        kept = {f"{case.name}, {system}": round(ratio, 4) for case, system, ratio in ratios(results)}
        USUAL.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
