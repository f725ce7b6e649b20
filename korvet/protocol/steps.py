"""Long work as steps, so that whoever does it can let others work in between; pure, and the same done at once.

Steps are a generator. It yields None where it has worked for a while, some tenths of a millisecond; or work that is
better done elsewhere, since it is long and one call (compression), and is sent its result. What it returns is the
result of all. `at_once` does it all without a pause, `korvet.storage.turns` in turns with other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Work = Callable[[], Any]
Steps = Generator[Work | None, Any, T]

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
