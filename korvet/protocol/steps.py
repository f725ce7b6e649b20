"""Long work divided into steps, so that the caller can run other tasks between them.

Steps are a generator without IO. It yields None after some tenths of a millisecond of work, or a LongCall
(decompression), whose result the caller sends. It returns the final result. `at_once` runs all steps without a pause;
`korvet.concurrency.time_slices` alternates them with other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from attrs import frozen

T = TypeVar("T")


@frozen
class LongCall(Generic[T]):
    """Work for a thread, since it takes long and cannot be divided."""

    work: Callable[[], T]
    # Upper bound of the memory for the call and for the use of its result.
    max_bytes: int

    def __call__(self) -> T:
        return self.work()


Steps = Generator[LongCall[Any] | None, Any, T]

#: Records per step; decoding or encoding them takes 0.1 to 0.2 ms.
RECORDS_A_STEP = 100


def at_once(steps: Steps[T]) -> T:
    """Run all steps and return the result."""
    answer = None
    try:
        while True:
            work = steps.send(answer)
            answer = None if work is None else work()
    except StopIteration as end:
        result: T = end.value
        return result
