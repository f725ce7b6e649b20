"""Decode topics one after the other, once or repeatedly. A topic that fails does not stop the others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from attrs import define, evolve, field

from korvet.lake.errors import CommitConflict, LakeError, OutOfOrder, Unreachable
from korvet.lake.put_if_absent import refuse_unsafe_store
from korvet.pipeline.archive_workers import SparkFailed
from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.redriving import Redriven, redrive
from korvet.pipeline.decoding.registry import RegistryError
from korvet.pipeline.decoding.rounds import Decoding, RoundResult
from korvet.pipeline.decoding.slices import SHOWN_FAULTS, Fault

# Attempts after temporary errors before --once gives a topic up.
ATTEMPTS = 5
FIRST_BACKOFF_S = 0.5

log = logging.getLogger(__name__)


@define
class Progress:
    """Progress of a topic since the start, or of one of its tables if it has several.

    `columns` are the columns added, as DDL, one item per commit.
    """

    topic: str
    records: int = 0
    typed: int = 0
    bad: int = 0
    tombstones: int = 0
    columns: list[str] = field(factory=list)
    faults: list[Fault] = field(factory=list)
    #: The rows of the dlq table that fit now; None if they were not decoded again.
    redriven: int | None = None
    error: str = ""
    failures: int = 0

    def note(self, redriven: Redriven) -> None:
        self.redriven = redriven.typed
        self.columns += redriven.columns

    def add(self, result: RoundResult) -> None:
        outcome = result.outcome
        if result.behind is None:  # otherwise the interrupted round counted them
            self.records += outcome.records
            self.tombstones += outcome.tombstones
        self.typed += 0 if result.behind == "dlq" else outcome.typed
        self.bad += outcome.bad
        if result.columns:
            self.columns.append(result.columns)
        self.faults = (self.faults + outcome.faults)[:SHOWN_FAULTS]
        self.error = ""
        self.failures = 0


@define
class DecodeJob:
    """Runs decodings every `every_s` seconds, or until there is nothing left. `on_progress` is called on changes.

    Record types that a decoding finds get decodings, too. If `redrives`, the rows of each dlq table are decoded again
    before the topic's first round.
    """

    decodings: list[Decoding]
    every_s: float | None = None
    on_progress: Callable[[DecodeJob], None] = lambda _: None
    redrives: bool = False
    progress: dict[str, Progress] = field(factory=dict, init=False)
    stopping: threading.Event = field(factory=threading.Event, init=False)

    def run(self) -> None:
        """Decode until nothing is left to do, or until `stop`. `progress` has the errors of each topic.

        Raises JavaEnded, and LakeError for a store that must not be used.
        """
        for location in {decoding.to.url: decoding.to for decoding in self.decodings}.values():
            refuse_unsafe_store(location)
        while not self.stopping.is_set():
            started = time.monotonic()
            if self._rounds():
                continue
            if self.every_s is None:
                return
            self.stopping.wait(max(0.0, self.every_s - (time.monotonic() - started)))

    def stop(self) -> None:
        """Make `run` return after the commit of the current round."""
        self.stopping.set()

    def _rounds(self) -> bool:
        """Run a round of each decoding. Return True if the next rounds should begin immediately."""
        goes_on = False
        for decoding in self.decodings:  # it grows
            if self.stopping.is_set():
                break
            goes_on |= self._round(decoding)
            there = {each.specification.table for each in self.decodings}
            self.decodings += [
                evolve(decoding, specification=each) for each in decoding.found if each.table not in there
            ]
        return goes_on

    def _round(self, decoding: Decoding) -> bool:
        """Run a round of one topic. Return True if the next round should begin immediately."""
        topic = decoding.specification.name
        progress = self.progress.setdefault(topic, Progress(topic))
        try:
            if self.redrives and progress.redriven is None:
                progress.note(redrive(decoding))
            result = decoding.round()
        except (CommitConflict, OutOfOrder) as error:
            log.info(
                "%(error)s", {"error": error, "topic": topic}
            )  # another writer committed first: open the tables again
            return self._failed(progress, str(error), may_pass=True)
        except (Unreachable, RegistryError, SparkFailed, OSError) as error:
            return self._failed(progress, str(error), may_pass=True)
        except (LakeError, SchemaFault) as error:
            return self._failed(progress, str(error), may_pass=False)
        if result is None:
            progress.error = ""
            return False
        progress.add(result)
        self.on_progress(self)
        return True

    def _failed(self, progress: Progress, error: str, *, may_pass: bool) -> bool:
        progress.error = error
        progress.failures += 1
        self.on_progress(self)
        if self.every_s is not None or not may_pass or progress.failures >= ATTEMPTS:
            return False
        self.stopping.wait(FIRST_BACKOFF_S * 2.0 ** (progress.failures - 1))
        return True
