"""What the scenarios ask of a client, in one vocabulary for four very different ones.

A client is made for one broker and holds no connection: every call makes what it needs and closes it, as short
programs do. Consumers assign themselves partitions and never subscribe.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

# Every wait in this folder ends here: far beyond what anything takes, near enough for a red test.
LIMIT_S = 20.0

# How long consumers let the broker hold a fetch: longer than LIMIT_S, so that only a waking broker answers.
# Not those of librdkafka: it tells that a partition is empty once a fetch has come back from there with nothing,
# and asks for its group's coordinator on the connection on which that fetch waits.
FETCH_WAIT_MS = 60_000

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Headers = tuple[tuple[str, bytes | None], ...]


@frozen
class Record:
    """What a test produces; without a timestamp the client puts its own."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0


@frozen
class Received:
    """What a consumer got."""

    offset: int
    timestamp_ms: int
    record: Record  # without its timestamp, so that it compares with what was produced


class Client(ABC):
    """One client library, talking to one broker."""

    id: str
    # Some clients leave out, or refuse, what they think nobody means.
    sends_empty_values_without_key = True
    sends_neither_key_nor_value = False
    sends_null_headers = True

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    @abstractmethod
    def create_topic(
        self, topic: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, by the client's own means, and return when it can be used."""

    @abstractmethod
    def partitions(self, topic: str) -> set[int]:
        """The topic's partitions by the cluster's metadata; empty when there is no such topic."""

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
        """Produce and wait until everything is acknowledged; raises when something was not."""

    @abstractmethod
    def consume(
        self, topic: str, count: int, *, partition: int = 0, start: int | None = None
    ) -> list[Received]:
        """The next `count` records from that offset, by default from the beginning."""

    @abstractmethod
    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        """The offset of the first record with that timestamp or a later one; None without one."""

    @abstractmethod
    def consume_first(self, topic: str, produce: Callable[[], None]) -> Received:
        """Wait at the beginning of an empty partition, call `produce` while waiting, give what arrives."""


class AdminClient(Client):
    """A client that also deletes topics and commits positions."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Delete the topic and return when the broker says that it is gone."""

    @abstractmethod
    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """The earliest and the latest offset, as the client asks for them."""

    @abstractmethod
    def commit(
        self, group_id: str, topic: str, offset: int, *, metadata: str = "", partition: int = 0
    ) -> None:
        """Commit a position for a consumer that assigned itself the partition."""

    @abstractmethod
    def committed(self, group_id: str, topic: str, *, partition: int = 0) -> tuple[int, str] | None:
        """The committed position and its metadata."""

    @abstractmethod
    def resume(self, group_id: str, topic: str, count: int, *, partition: int = 0) -> list[Received]:
        """The next `count` records from the group's committed position."""


def eventually(ask: Callable[[], object], expected: object) -> None:
    """Ask until the answer is the one expected, which it has to be before LIMIT_S is over."""
    deadline = time.monotonic() + LIMIT_S
    while (answer := ask()) != expected and time.monotonic() < deadline:
        pass

    assert expected == answer


class Timeout(Exception):  # noqa: N818  what did not come is in the message
    """A client waited LIMIT_S in vain."""
