"""Starting and ending offsets: parse the options of Spark's Kafka source, and offsets in checkpoints.

Offsets are written `{"orders": {"0": 23, "1": -1}}`, in options and in checkpoints. -2 is the earliest offset and -1
the latest. In checkpoints each topic has its ID as well, `"topic_id": "<uuid>"`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NoReturn
from uuid import UUID

from attrs import frozen

from korvet.client.model import TopicPartition

Offsets = dict[TopicPartition, int]
TopicIds = Mapping[str, UUID]
#: Offsets as Spark stores them: by topic, the offsets of its partitions and its ID.
StreamOffset = dict[str, dict[str, int | str]]

TOPIC_ID = "topic_id"

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1


class Bound(Enum):
    """The start or the end of a log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@frozen
class SpecificOffsets:
    """An offset for each partition; -1 is the latest and -2 the earliest."""

    offsets: Mapping[TopicPartition, int]


@frozen
class SpecificTimestamps:
    """The first record at or after a time (ms): a time for each partition, or one for all of them.

    If there is no such record, use the latest offset if `or_latest` is True; otherwise it is an error.
    """

    timestamps: Mapping[TopicPartition, int] | int
    or_latest: bool


Position = Bound | SpecificOffsets | SpecificTimestamps


class WrongOption(ValueError):  # noqa: N818  names the condition
    """An option is invalid. The message contains the option, the fault, and the accepted values."""


def parse_partitions(option: str, text: str) -> list[TopicPartition]:
    """Parse `{"orders": [0, 1]}`. Raises WrongOption."""
    topics = _json(option, text, '{"orders":[0,1]}')
    found = []
    for topic, partitions in topics.items():
        if not isinstance(partitions, list) or not all(_is_partition(p) for p in partitions):
            _refuse(option, text, '{"orders":[0,1]}')
        found += [TopicPartition(topic, partition) for partition in partitions]
    if not found:
        raise WrongOption(f"{option}: no partition is named; accepted: for example " + '{"orders":[0,1]}')
    return found


def parse_offsets(option: str, text: str, *, lowest: int = EARLIEST_OFFSET) -> dict[TopicPartition, int]:
    """Parse `{"orders": {"0": 23}}` with numbers of at least `lowest`. Raises WrongOption."""
    example = '{"orders":{"0":23,"1":-1}}' if lowest < 0 else '{"orders":{"0":1700000000000}}'
    found = {}
    for topic, partitions in _json(option, text, example).items():
        if not isinstance(partitions, dict):
            _refuse(option, text, example)
        for partition, offset in partitions.items():
            if partition == TOPIC_ID:
                continue  # the offsets were copied from a checkpoint or a progress
            if not partition.isdecimal() or type(offset) is not int or not lowest <= offset < 2**63:
                _refuse(option, text, example)
            found[TopicPartition(topic, int(partition))] = offset
    return found


def to_json(
    offsets: Mapping[TopicPartition, int], topic_ids: TopicIds = MappingProxyType({})
) -> StreamOffset:
    """Return offsets and topic IDs in the form of checkpoints, sorted because Spark compares their texts."""
    found: StreamOffset = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    for topic, partitions in found.items():
        if topic in topic_ids:
            partitions[TOPIC_ID] = str(topic_ids[topic])
    return found


def from_json(stored: Mapping[str, Mapping[str, int | str]]) -> tuple[Offsets, TopicIds]:
    """Return the offsets and the topic IDs of a checkpoint. Checkpoints of korvet 0.1.0 do not have IDs."""
    offsets: Offsets = {}
    topic_ids = {}
    for topic, partitions in stored.items():
        for name, value in partitions.items():
            if name == TOPIC_ID:
                topic_ids[topic] = UUID(str(value))
            else:
                offsets[TopicPartition(topic, int(name))] = int(value)
    return offsets, topic_ids


def _json(option: str, text: str, example: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        _refuse(option, text, example)
    return value


def _is_partition(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _refuse(option: str, text: str, example: str) -> NoReturn:
    raise WrongOption(f"{option}={text!r} does not have the accepted form; accepted: {example}")
