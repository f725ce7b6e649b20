"""A document with named parts as one value, for stores that save a value as a whole.

The value begins with `MAGIC`, which is neither JSON nor text, so that no reader takes it for a document without parts.
Then come the head, and the name and the value of each part, each after its length in four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from attrs import frozen

from korvet.protocol.errors import KafkaStorageError


@frozen
class Parted:
    """A document with changes of its parts, to be saved by `Documents.save_parts`."""

    head: bytes
    changes: Mapping[str, bytes | None]


MAGIC = b"\0parts\0"
LENGTH = struct.Struct(">I")


def composed(head: bytes, parts: Mapping[str, bytes]) -> bytes:
    """Return the head and the parts as one value."""
    texts = [head]
    for name, part in parts.items():
        texts += (name.encode(), part)
    return MAGIC + b"".join(LENGTH.pack(len(text)) + text for text in texts)


def decomposed(value: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Return the head and the parts of a value; another value is a head without parts. Raises KafkaStorageError."""
    if not value.startswith(MAGIC):
        return value, {}
    texts, position = [], len(MAGIC)
    while position < len(value):
        try:
            (size,) = LENGTH.unpack_from(value, position)
        except struct.error:
            size = len(value)
        position += LENGTH.size
        text = value[position : position + size]
        if len(text) != size:
            raise KafkaStorageError("a document's parts are damaged: one is longer than the document")
        texts.append(text)
        position += size
    head, *rest = texts or [b""]
    names = (name.decode(errors="replace") for name in rest[::2])
    return head, dict(zip(names, rest[1::2], strict=False))


def updated(parts: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return the parts after the changes, of which None removes a part."""
    return {name: part for name, part in {**parts, **changes}.items() if part is not None}
