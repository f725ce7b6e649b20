"""Send all flights that left New York in 2013 through a topic and tables: archive, decode, query, trim, replay.

    .venv/bin/python examples/flights_lake.py      # starts its own broker; requires Java 17

The 336,776 rows of examples/flights.py go into a topic while the archive is running. Then they are decoded to a typed
table. A query computes each carrier's mean delay, which is compared with pandas' result on the source. The broker drops
what is archived, and a consumer still reads the whole topic, row for row. Finally the archive is replayed into a second
topic, which is archived too, and both tables are compared.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from deltalake import DeltaTable

sys.path.insert(0, str(Path(__file__).parent.parent))
from examples.flights import consume_and_compare, flights, produce, timed

TOPIC, AGAIN = "flights", "flights-again"
PARTITIONS = 4
SETTINGS = [
    *("--set", "remote.storage.enable=true", "--set", "local.retention.bytes=1000000"),
    *("--partitions", str(PARTITIONS)),
]
QUERY = """
    select carrier, count(*) as flights, round(avg(dep_delay), 6) as delay
    from typed_flights group by carrier order by carrier
"""
WAIT_LIMIT_S = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where to put everything [a temporary folder]")
    parser.add_argument("--rows", type=int, help="only that many rows of the table")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        run(arguments.folder, arguments.rows)
        return
    with tempfile.TemporaryDirectory(prefix="flights-") as temporary:
        run(Path(temporary), arguments.rows)


def run(folder: Path, rows: int | None) -> None:
    lake, typed = str(folder / "lake"), str(folder / "typed")
    with broker(folder) as servers:
        korvet("topics", "create", TOPIC, *SETTINGS, "-b", servers)
        with archiving(servers, lake):
            total = timed("produced", lambda: produce(servers, TOPIC, rows))
        archive_rest(servers, TOPIC, lake)
        show(f"archived {rows_of(lake, TOPIC):,} rows")

        korvet("lake", "decode", "--lake", lake, "--typed", typed, "--topics", TOPIC, "--once")
        compare_delays(delays(servers, lake, typed), rows)

        kept = wait_until_trimmed(servers)
        show(f"the broker's own part of the topic begins {kept:,} offsets after the topic does")
        timed(
            "consumed, mostly from the lake,",
            lambda: consume_and_compare(servers, TOPIC, PARTITIONS, total, rows),
        )

        korvet("topics", "create", AGAIN, *SETTINGS, "-b", servers)
        korvet("lake", "replay", TOPIC, "--lake", lake, "--into", AGAIN, "-b", servers)
        archive_rest(servers, AGAIN, lake)
        compare_tables(lake)
    show("Both tables are equal, row for row.")


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run a broker that keeps its records in `folder`. Yield the address for clients."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        servers = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {
        "lake.url": folder / "lake",
        "offset.mapping": "dense",
        "log.retention.check.interval.ms": 1000,
    }
    arguments = [f"--set={name}={value}" for name, value in settings.items()]
    storage = f"embedded:{folder / 'data'}"
    with process("serve", "--storage", storage, "--listeners", servers, *arguments):
        deadline = time.monotonic() + WAIT_LIMIT_S
        while True:
            try:
                socket.create_connection((servers.partition(":")[0], int(servers.partition(":")[2]))).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    sys.exit("The broker does not answer.")
                time.sleep(0.1)
        yield servers


@contextmanager
def archiving(servers: str, lake: str) -> Iterator[None]:
    """Run the archive during the block; at the end it completes its current commit."""
    with process("lake", "archive", "-b", servers, "--topics", TOPIC, "--lake", lake, "--every", "1s"):
        yield


def archive_rest(servers: str, topic: str, lake: str) -> None:
    korvet("lake", "archive", "-b", servers, "--topics", topic, "--lake", lake, "--once")


def delays(servers: str, lake: str, typed: str) -> pd.DataFrame:
    """Return each carrier's flights and mean delay, by SQL on the typed table."""
    answer = korvet("lake", "query", QUERY, "--lake", lake, "--typed", typed, "-b", servers, "--json")
    return pd.DataFrame([json.loads(line) for line in answer.splitlines()])


def compare_delays(found: pd.DataFrame, rows: int | None) -> None:
    """Compare with pandas' result on the source."""
    source = pd.DataFrame(flights(rows))
    by_carrier = source.groupby("carrier")["dep_delay"]
    expected = pd.DataFrame({"flights": by_carrier.size(), "delay": by_carrier.mean().round(6)}).reset_index()
    pd.testing.assert_frame_equal(found, expected, check_exact=False, atol=1e-6)
    show(f"mean delays of {len(found)} carriers are those that pandas computes")


def wait_until_trimmed(servers: str) -> int:
    """Wait until the broker has dropped archived records. Return the number of dropped offsets."""
    deadline = time.monotonic() + WAIT_LIMIT_S
    while True:
        first, local = (offsets(servers, name) for name in ("earliest", "earliest-local"))
        if sum(local) > sum(first):
            return sum(local) - sum(first)
        if time.monotonic() > deadline:
            sys.exit("Nothing was trimmed.")
        time.sleep(0.5)


def offsets(servers: str, when: str) -> list[int]:
    lines = korvet("offsets", TOPIC, "--time", when, "-b", servers).splitlines()
    return [int(line.rpartition(":")[2]) for line in lines]


def rows_of(lake: str, topic: str) -> int:
    return int(DeltaTable(f"{lake}/{topic}").to_pyarrow_dataset().count_rows())


def compare_tables(lake: str) -> None:
    """Compare the archives of both topics."""
    first, second = (archived(lake, topic) for topic in (TOPIC, AGAIN))
    pd.testing.assert_frame_equal(first, second)


def archived(lake: str, topic: str) -> pd.DataFrame:
    columns = ["partition", "offset", "timestamp_ms", "key", "value"]
    table = DeltaTable(f"{lake}/{topic}").to_pyarrow_dataset().to_table(columns=columns)
    frame = table.to_pandas().sort_values(["partition", "offset"], ignore_index=True)
    return frame.drop(columns="offset")


def korvet(*arguments: str) -> str:
    """Run a korvet command to its end and return its output."""
    done = subprocess.run(command(arguments), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"korvet {' '.join(arguments)} failed.")
    return done.stdout


@contextmanager
def process(*arguments: str) -> Iterator[None]:
    """Run a korvet command during the block, and stop it at the end."""
    running = subprocess.Popen(command(arguments))
    try:
        yield
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(WAIT_LIMIT_S)


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "korvet", *arguments]


def show(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
