"""The interface that scenarios use for four very different clients.

A client is made for one broker and keeps no connection: every call opens what it needs and closes it, as short programs
do. Consumers assign themselves partitions and never subscribe.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

# The limit of every wait in this folder: far longer than any operation takes.
LIMIT_S = 20.0

# Consumers' fetch.max.wait.ms. It exceeds LIMIT_S, so that only a broker that answers early passes. librdkafka is an
# exception: it reports an empty partition only after an empty Fetch response, and sends the group's coordinator lookup
# on the connection on which that Fetch waits.
FETCH_WAIT_MS = 60_000

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Headers = tuple[tuple[str, bytes | None], ...]


@frozen
class Record:
    """A record to produce; without a timestamp the client sets one."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0


@frozen
class Received:
    """A consumed record."""

    offset: int
    timestamp_ms: int
    record: Record  # without its timestamp, so that it compares with what was produced


class Client(ABC):
    """One client library, talking to one broker."""

    id: str
    # Some clients omit or refuse unusual records.
    sends_empty_values_without_key = True
    sends_neither_key_nor_value = False
    sends_null_headers = True

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    @abstractmethod
    def create_topic(
        self, topic: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic with the client's own API, and return when it can be used."""

    @abstractmethod
    def partitions(self, topic: str) -> set[int]:
        """Return the topic's partitions from the cluster's metadata; empty if there is no such topic."""

    @abstractmethod
    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> None:
        """Produce and wait until everything is acknowledged; raise if a record was not."""

    @abstractmethod
    def consume(
        self, topic: str, count: int, *, partition: int = 0, start: int | None = None
    ) -> list[Received]:
        """Return the next `count` records from an offset, by default from the beginning."""

    @abstractmethod
    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        """Return the offset of the first record with that timestamp or a later one, or None."""

    @abstractmethod
    def consume_first(self, topic: str, produce: Callable[[], None]) -> Received:
        """Wait at the beginning of an empty partition, call `produce` while waiting, and return the record."""


class AdminClient(Client):
    """A client that also deletes topics and commits offsets."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Delete the topic and return when the broker confirms the deletion."""

    @abstractmethod
    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """Return the earliest and the latest offset, as the client requests them."""

    @abstractmethod
    def commit(
        self, group_id: str, topic: str, offset: int, *, metadata: str = "", partition: int = 0
    ) -> None:
        """Commit an offset for a consumer that assigned itself the partition."""

    @abstractmethod
    def committed(self, group_id: str, topic: str, *, partition: int = 0) -> tuple[int, str] | None:
        """Return the committed offset and its metadata."""

    @abstractmethod
    def resume(self, group_id: str, topic: str, count: int, *, partition: int = 0) -> list[Received]:
        """Return the next `count` records from the group's committed offset."""


def eventually(ask: Callable[[], object], expected: object) -> None:
    """Repeat a call until it returns the expected value; fail after LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while (answer := ask()) != expected and time.monotonic() < deadline:
        pass

    assert expected == answer


class Timeout(Exception):  # noqa: N818  the message names what is missing
    """A client waited for LIMIT_S without success."""
