"""Answer a request that names some elements several times: equal elements share one encoding.

Kafka answers each element. Repetitions must take neither memory nor time, since an element of a few bytes can have an
answer of a megabyte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from korvet.protocol.buffers import Buffer, EncodedElements
from korvet.protocol.codec import Writer

M = TypeVar("M")


def repeated(keys: Sequence[str], answers: Mapping[str, M], write: Writer[M]) -> list[M]:
    """Return the answers in the order of `keys`, for an `encodable` array; `write` writes one of them."""
    if len(keys) == len(answers):
        return [answers[key] for key in keys]
    encodings = {key: encoded(write, answer) for key, answer in answers.items()}
    return cast(list[M], EncodedElements(len(keys), [encodings[key] for key in keys]))


def encoded(write: Writer[M], answer: M) -> Buffer:
    """Return the encoding of one answer in one buffer."""
    buffers: list[Buffer] = []
    write(answer, buffers.append)
    return b"".join(buffers)
