"""Files of a group's offsets, in the CSV format of kafka-consumer-groups --export and --from-file.

A line is topic,partition,offset without a header. Kafka's tool writes group,topic,partition,offset if it was given
several groups; of such a file, the lines of other groups are ignored.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from typing import IO

import click

from korvet.client import TopicPartition

ACCEPTED = "Accepted: topic,partition,offset or group,topic,partition,offset."


def read_offsets(file: IO[str], group: str) -> dict[TopicPartition, int]:
    """Return the offsets of a group in a file. Raises BadParameter, which names the line."""
    offsets: dict[TopicPartition, int] = {}
    try:
        for number, row in enumerate(csv.reader(file), start=1):
            match [cell.strip() for cell in row]:
                case []:
                    continue
                case [topic, partition, offset]:
                    pass
                case [of, topic, partition, offset]:
                    if of != group:
                        continue
                case _:
                    raise fault(file, number, f"it has {len(row)} fields")
            if not topic or not partition.isdecimal() or not offset.isdecimal():
                raise fault(file, number, "partition and offset are not whole numbers")
            offsets[TopicPartition(topic, int(partition))] = int(offset)
    except (csv.Error, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file.name} is not CSV: {error}.", param_hint="--from-file") from None
    if not offsets:
        raise click.BadParameter(
            f"{file.name} has no offsets of group {group}. {ACCEPTED}", param_hint="--from-file"
        )
    return offsets


def fault(file: IO[str], number: int, reason: str) -> click.BadParameter:
    return click.BadParameter(f"{file.name}, line {number}: {reason}. {ACCEPTED}", param_hint="--from-file")


def write_offsets(file: IO[str], offsets: Mapping[TopicPartition, int]) -> None:
    """Write offsets in the same format, sorted."""
    rows: Iterable[tuple[str, int, int]] = ((*tp, offsets[tp]) for tp in sorted(offsets))
    csv.writer(file, lineterminator="\n").writerows(rows)
