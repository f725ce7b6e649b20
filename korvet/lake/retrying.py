"""Retry work on a store after errors that may be temporary: one failed request must not end hours of reading."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import TypeVar

from attrs import define

from korvet.lake.errors import Unreachable
from korvet.lake.location import Location
from korvet.lake.store_errors import first_line

ATTEMPTS = 5
FIRST_BACKOFF_S = 0.5

#: The store's answers to a wrong address or login.
PERMANENT = re.compile(
    "NoSuchBucket|NO_SUCH_BUCKET|InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch"
    "|ContainerNotFound|AuthenticationFailed|AuthorizationFailure|invalid_grant"
)

T = TypeVar("T")
log = logging.getLogger(__name__)


@define
class Retries:
    """Consecutive failures of some work."""

    failures: int = 0

    def wait_after(self, error: Unreachable) -> None:
        """Sleep before the next attempt. Reraise the error after ATTEMPTS failures, or if it is permanent."""
        self.failures += 1
        if self.failures == ATTEMPTS or PERMANENT.search(str(error)):
            raise error
        log.warning("trying again: %(error)s", {"error": error})
        time.sleep(FIRST_BACKOFF_S * 2 ** (self.failures - 1))

    def succeeded(self) -> None:
        self.failures = 0


def retried(work: Callable[[], T]) -> T:
    """Call `work` until it succeeds, at most ATTEMPTS times. Raises its last error."""
    retries = Retries()
    while True:
        try:
            return work()
        except Unreachable as error:
            retries.wait_after(error)


def retried_writing(location: Location, write: Callable[[], T]) -> T:
    """Call `write`, which reads files of a table and writes new ones, as `retried` does. Raises Unreachable.

    Raises FileNotFoundError immediately: a vacuum has removed a file.
    """

    def attempt() -> T:
        # A file that was written in part, or whose last answer was lost, stays unreferenced: each has its own name.
        try:
            return write()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Unreachable(f"{location}: {first_line(error)}") from error

    return retried(attempt)
