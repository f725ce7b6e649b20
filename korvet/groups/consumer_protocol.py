"""The metadata and assignments that consumers of the classic protocol exchange (Kafka's ConsumerProtocol).

    subscription    int16 version, topics, user data; from version 1 owned partitions; from version 2 the generation;
                    from version 3 the rack
    assignment      int16 version, partitions by topic, user data

A reader accepts versions above its own, whose additional fields follow the known ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from attrs import define, field, frozen

NEWEST = 3
OWNED_SINCE, GENERATION_SINCE, RACK_SINCE = 1, 2, 3

# Topic name -> partitions.
Partitions = Mapping[str, frozenset[int]]


@frozen
class ClassicSubscription:
    """A consumer's subscription. `version` is one that the broker can write, too."""

    version: int = 0
    topics: tuple[str, ...] = ()
    owned: Partitions = field(factory=dict)
    rack_id: str | None = None
    user_data: bytes = b""


@frozen
class ClassicAssignment:
    """A consumer's assignment. `user_data` is what its assignor has added."""

    partitions: Partitions = field(factory=dict)
    user_data: bytes = b""


def read_subscription(metadata: bytes) -> ClassicSubscription:
    """Return the subscription in a consumer's metadata. Raises ValueError."""
    reader = _Reader(metadata)
    version = reader.version()
    topics = tuple(reader.text() for _ in range(reader.count(2)))
    user_data = reader.data()
    owned = reader.partitions() if version >= OWNED_SINCE else {}
    if version >= GENERATION_SINCE:
        reader.int32()
    rack_id = reader.optional_text() if version >= RACK_SINCE else None
    return ClassicSubscription(min(version, NEWEST), topics, owned, rack_id, user_data)


def read_assignment(data: bytes) -> ClassicAssignment:
    """Return the assignment that a leader has computed; no bytes are no partitions. Raises ValueError."""
    if not data:
        return ClassicAssignment()
    reader = _Reader(data)
    reader.version()
    return ClassicAssignment(reader.partitions(), reader.data())


def written_assignment(partitions: Mapping[str, Iterable[int]], version: int) -> bytes:
    """Return an assignment for a consumer whose subscription has that version."""
    parts = [struct.pack(">hi", version, len(partitions))]
    for topic, numbers in sorted(partitions.items()):
        name, ordered = topic.encode(), sorted(numbers)
        parts.append(struct.pack(f">h{len(name)}si{len(ordered)}i", len(name), name, len(ordered), *ordered))
    return b"".join(parts) + struct.pack(">i", -1)


@define
class _Reader:
    """Reads fields one after another. Raises ValueError if the data ends before."""

    source: bytes
    position: int = 0

    def version(self) -> int:
        version = self._int(">h", 2)
        if version < 0:
            raise ValueError("a version is negative")
        return version

    def int32(self) -> int:
        return self._int(">i", 4)

    def count(self, least: int) -> int:
        """Return the length of an array whose elements have at least `least` bytes."""
        count = self.int32()
        if not 0 <= count * least <= len(self.source) - self.position:
            raise ValueError("an array is longer than the data")
        return count

    def text(self) -> str:
        text = self.optional_text()
        if text is None:
            raise ValueError("a text is null")
        return text

    def optional_text(self) -> str | None:
        size = self._int(">h", 2)
        return None if size == -1 else self._take(size).decode()

    def data(self) -> bytes:
        size = self.int32()
        return b"" if size == -1 else self._take(size)

    def partitions(self) -> dict[str, frozenset[int]]:
        found: dict[str, frozenset[int]] = {}
        for _ in range(self.count(6)):
            topic, count = self.text(), self.count(4)
            numbers = struct.unpack(f">{count}i", self._take(4 * count))
            found[topic] = found.get(topic, frozenset()) | frozenset(numbers)
        return found

    def _int(self, layout: str, size: int) -> int:
        (number,) = struct.unpack(layout, self._take(size))
        return int(number)

    def _take(self, size: int) -> bytes:
        taken = self.source[self.position : self.position + size]
        if size < 0 or len(taken) != size:
            raise ValueError("the data ends within a field")
        self.position += size
        return taken
