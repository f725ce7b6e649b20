"""The state of a transactional id, and the JSON document in which it is stored.

    {"format": 1, "state": "Ongoing", "producer_id": 2377900603473920, "producer_epoch": 5, "last_epoch": 4,
     "previous_id": -1, "next_id": -1, "timeout_ms": 60000, "number": 17, "coordinator_epoch": 3, "version": 2,
     "partitions": [["orders", "0a1b2c3d4e5f60718293a4b5c6d7e8f9", [0, 3]]], "groups": ["billing"],
     "started_ms": 1763666000123, "updated_ms": 1763666000123, "server": ""}

`number` rises when a transaction begins, and names it together with the producer id: markers with it are idempotent,
and a partition refuses records of a transaction that has ended. `version` is the transaction.version of the client that
began or ended the transaction. `server` is the incarnation of the store (`Documents.incarnation`) at the begin.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from attrs import frozen

from korvet.protocol.text import quoted

FORMAT = 1
NO_ID = -1
NO_EPOCH = -1
NO_TIME = -1


class State(Enum):
    """The states of a transactional id; the values are the names that Kafka's tools print."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED = frozenset((State.PREPARE_COMMIT, State.PREPARE_ABORT))


class Partition(NamedTuple):
    """A partition in a transaction. A topic with another id is another topic."""

    topic: str
    partition: int
    topic_id: UUID


@frozen(kw_only=True)
class Transaction:
    """The state of a transactional id."""

    state: State
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    last_epoch: int = (
        NO_EPOCH  # the epoch before `producer_epoch`, if its producer may still ask for its successor
    )
    previous_id: int = (
        NO_ID  # the producer id before `producer_id`, if the last transaction has exhausted its epochs
    )
    next_id: int = NO_ID  # replaces `producer_id` when the transaction is complete
    number: int = 0
    coordinator_epoch: int = 0
    version: int = 1
    partitions: frozenset[Partition] = frozenset()
    groups: frozenset[str] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    server: str = ""

    @property
    def is_prepared(self) -> bool:
        """True while the transaction's markers are written."""
        return self.state in PREPARED

    @property
    def ends_ms(self) -> int:
        """The time at which an ongoing transaction times out, in milliseconds since 1970."""
        return self.started_ms + self.timeout_ms


class UnreadableDocument(Exception):  # noqa: N818  names the state of the document
    """The document is damaged, or was saved by a newer korvet."""


def written(transaction: Transaction) -> bytes:
    """Return the document of a transactional id."""
    topics = _by_topic(transaction.partitions)
    document = {
        "format": FORMAT,
        "state": transaction.state.value,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "last_epoch": transaction.last_epoch,
        "previous_id": transaction.previous_id,
        "next_id": transaction.next_id,
        "timeout_ms": transaction.timeout_ms,
        "number": transaction.number,
        "coordinator_epoch": transaction.coordinator_epoch,
        "version": transaction.version,
        "partitions": [
            [topic, topic_id, sorted(topics[topic, topic_id])] for topic, topic_id in sorted(topics)
        ],
        "groups": sorted(transaction.groups),
        "started_ms": transaction.started_ms,
        "updated_ms": transaction.updated_ms,
        "server": transaction.server,
    }
    return json.dumps(document, ensure_ascii=False).encode()


def _by_topic(partitions: Iterable[Partition]) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of partitions by topic and topic id."""
    topics: dict[tuple[str, str], list[int]] = {}
    # A producer may add 10,000 partitions one by one, mostly of one topic: its id is hashed once.
    last_id: UUID | None = None
    last_topic, numbers = "", list[int]()
    for topic, partition, topic_id in partitions:
        if topic_id is not last_id or topic != last_topic:
            last_id, last_topic = topic_id, topic
            numbers = topics.setdefault((topic, topic_id.hex), [])
        numbers.append(partition)
    return topics


def read(transactional_id: str, document: bytes) -> Transaction:
    """Return the state in a document. Raises UnreadableDocument."""
    try:
        values = json.loads(document)
        if values["format"] > FORMAT:
            raise UnreadableDocument(
                f"transactional id {quoted(transactional_id)} is of format {values['format']}, not {FORMAT}"
            )
        return _read(values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableDocument(
            f"transactional id {quoted(transactional_id)} has a damaged document: {error!r:.200}"
        ) from None


# The numbers of a document, with the range of each: from the first to below the second.
NUMBERS = {
    "producer_id": (0, 2**63),
    "producer_epoch": (0, 2**15),
    "last_epoch": (NO_EPOCH, 2**15),
    "previous_id": (NO_ID, 2**63),
    "next_id": (NO_ID, 2**63),
    "timeout_ms": (1, 2**31),
    "number": (0, 2**53),
    "coordinator_epoch": (0, 2**31),
    "version": (1, 3),
    "started_ms": (NO_TIME, 2**63),
    "updated_ms": (NO_TIME, 2**63),
}


def _read(values: dict[str, Any]) -> Transaction:
    numbers = {name: values[name] for name in NUMBERS}
    for name, (lowest, end) in NUMBERS.items():
        if type(numbers[name]) is not int or not lowest <= numbers[name] < end:
            raise ValueError(f"{name} is out of range")
    server, groups = values["server"], frozenset(values["groups"])
    if not all(isinstance(text, str) for text in (server, *groups)):
        raise ValueError("a text is none")
    partitions = (
        Partition(topic, _partition(partition), topic_id)
        for topic, topic_id, indexes in (
            (_text(topic), UUID(hex=topic_id), indexes) for topic, topic_id, indexes in values["partitions"]
        )
        for partition in indexes
    )
    return Transaction(
        state=State(values["state"]),
        partitions=frozenset(partitions),
        groups=groups,
        server=server,
        **numbers,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a topic's name is a text")
    return value


def _partition(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError("a partition is out of range")
    return value
