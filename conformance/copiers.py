"""Clients that copy a topic in transactions: each is killed again and again, and each record comes once.

The copiers of franz-go, KafkaJS, kafka-python, aiokafka and librdkafka consume in a group, produce, and commit the
offsets in the same transaction. A new copier with the same transactional id ends what the killed one has left open.
Afterwards the output, read at `read_committed`, must have the records of each partition in order and once.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from uuid import uuid4

from confluent_kafka import Producer

from conformance import go_clients, node_clients
from conformance.killed import by_partition, committed, create_topics, first_difference, running
from conformance.part import Result, Target, command, program
from conformance.python_copying import CLIENTS

PARTITIONS = 2
RECORDS = 6_000
TRANSACTION = 10  # records at most
KILLS = 5


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run every copier on every broker. Raises Unavailable without Go or npm, or if a client cannot be downloaded."""
    with tempfile.TemporaryDirectory(prefix="korvet-copiers-") as folder, ThreadPoolExecutor(2) as pool:
        for client, words in copiers(Path(folder)).items():
            yield from pool.map(partial(killed_while_copying, client, words), targets)


def copiers(folder: Path) -> Mapping[str, list[str]]:
    """Return the command line of each copier, without its arguments; that of franz-go is built in the folder."""
    go = program("go", "clients in Go need Go 1.26 or newer")
    command(go, "-C", go_clients.SOURCES, "build", "-o", folder / "copying", "./copying")
    packages = node_clients.installed()
    node = [str(packages / "node_modules" / ".bin" / "node"), str(packages / "copying.js")]
    python = {client: [sys.executable, "-m", "conformance.python_copying", client] for client in CLIENTS}
    return {"franz-go": [str(folder / "copying")], "KafkaJS": node, **python}


def killed_while_copying(client: str, words: Sequence[str], target: Target) -> Result:
    """Kill the copier at random times amid its transactions, and compare its output with what it has read."""
    name = f"copying-{uuid4().hex[:8]}"
    read, written = f"{name}-in", f"{name}-out"
    create_topics(target, (read, written), PARTITIONS)
    expected = [
        [f"{partition} {number}" for number in range(RECORDS // PARTITIONS)]
        for partition in range(PARTITIONS)
    ]
    producer = Producer({"bootstrap.servers": target.bootstrap_servers, "enable.idempotence": True})
    for partition, values in enumerate(expected):
        for value in values:
            producer.produce(read, value, partition=partition)
    producer.flush()
    random = Random(name)
    command_line = [*words, target.bootstrap_servers, name, read, written, str(TRANSACTION)]
    fault = ""
    copied = 0
    for _ in range(KILLS):
        with running(command_line) as process:
            copied = len(committed(target, written, PARTITIONS, copied + 1))
            time.sleep(random.uniform(0, 0.1))  # the kill comes at any step of a transaction
            fault = fault or ended(process.poll())
    with running(command_line) as process:
        messages = committed(target, written, PARTITIONS, RECORDS, to_end=True)
        fault = fault or ended(process.poll())
    fault = fault or first_difference(expected, by_partition(messages, PARTITIONS))
    if not fault and copied == RECORDS:
        fault = f"everything was copied before the last of {KILLS} kills"
    return Result(f"{client} copies each record once through kills", target.name, fault)


def ended(status: int | None) -> str:
    """Return the fault of a copier that has ended by itself, or an empty text."""
    return "" if status is None else f"the copier ended with {status}"
