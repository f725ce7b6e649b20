"""Long work as steps, so that whoever does it can let others work in between; pure, and the same done at once.

Steps are a generator. It yields None where it has worked for a while, some tenths of a millisecond; or a LongCall
(decompression), and is sent its result. It returns the
result of all. `at_once` does it all without a pause, `korvet.storage.turns` in turns with other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from attrs import frozen

T = TypeVar("T")


@frozen
class LongCall(Generic[T]):
    """Work that is better done in a thread, since it takes long and cannot be divided."""

    work: Callable[[], T]
    # The memory that the call and the use of its result may take.
    max_bytes: int

    def __call__(self) -> T:
        return self.work()


Steps = Generator[LongCall[Any] | None, Any, T]

#: Records that take some tenth or two of a millisecond to decode or to encode.
RECORDS_A_STEP = 100


def at_once(steps: Steps[T]) -> T:
    """Do everything, and return the result."""
    answer = None
    try:
        while True:
            work = steps.send(answer)
            answer = None if work is None else work()
    except StopIteration as end:
        result: T = end.value
        return result
