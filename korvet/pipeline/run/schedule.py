"""Decide what is due of a table, from its policy, what was observed of it, and the time. Pure: it reads no clock.

Times are seconds of a clock that never steps back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

from attrs import define, field

from korvet.pipeline.run.policy import Policy

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 300.0
# A standby commits what the other run has left waiting for this much longer than the policy allows.
STANDBY_S = 30.0
LONGEST_POLL_S = 5.0
SHORTEST_POLL_S = 0.1
POLLS_A_LAG = 4
# Time that a commit may take after a record's lag, before the table is behind.
COMMIT_S = 5.0
RETAIN_EVERY_S = 3600.0
# Files that also have rows that stay are written again.
RETAIN_TYPED_EVERY_S = 24 * 3600.0
VACUUM_EVERY_S = 24 * 3600.0


ARCHIVE = "archive"


class State(StrEnum):
    """The state of a table."""

    CURRENT = "current"  # no record waits for much longer than the policy allows
    BEHIND = "behind"
    STANDBY = "standby"  # another run commits to the table
    RETRYING = "retrying"
    FAILED = "failed"


@define
class Health:
    """The failures of one kind of work on a table, and the time of the next attempt."""

    error: str = ""
    may_pass: bool = False
    failures: int = 0
    again_s: float = -math.inf

    def succeeded(self) -> None:
        self.error = ""
        self.failures = 0
        self.again_s = -math.inf

    def failed(self, now: float, error: str, *, may_pass: bool) -> None:
        """Count a failure. Attempts are delayed increasingly if it may pass, otherwise by LONGEST_RETRY_S."""
        self.error = error
        self.may_pass = may_pass
        self.failures += 1
        delay = LONGEST_RETRY_S
        if may_pass:
            delay = min(delay, FIRST_RETRY_S * 2.0 ** min(self.failures - 1, 16))
        self.again_s = now + delay

    def summarize(self, several: Sequence[Health]) -> None:
        """Take the error of the first that failed, and the time at which one of them may be attempted again."""
        failed = [each for each in several if each.error]
        self.succeeded()
        if failed:
            self.error, self.may_pass, self.failures = failed[0].error, failed[0].may_pass, failed[0].failures
            self.again_s = min(each.again_s for each in failed)

    def is_ready(self, now: float) -> bool:
        """Return True if the work may be attempted."""
        return now >= self.again_s


@define
class Waiting:
    """The offsets of a partition that wait for a commit: those from `archived` to `end`.

    `archived` is None until the table was read. `clear_s` is the last time at which no record waited that waits now.
    """

    end: int
    clear_s: float
    archived: int | None = None
    #: The time at which `end` was observed.
    observed_s: float = -math.inf

    @property
    def offsets(self) -> int:
        """The number of offsets that wait; it may exceed the number of records."""
        return 0 if self.archived is None else max(0, self.end - self.archived)


@define
class TableSchedule:
    """The schedule of one table."""

    policy: Policy
    partitions: dict[int, Waiting] = field(factory=dict)
    archive: Health = field(factory=Health)
    decode: Health = field(factory=Health)
    mirror: Health = field(factory=Health)
    register: Health = field(factory=Health)
    upkeep: Health = field(factory=Health)
    is_standby: bool = False  # another run commits to the table
    #: By table, the times of the last retention and of the last vacuum.
    _retained_s: dict[str, float] = field(factory=dict)
    _vacuumed_s: dict[str, float] = field(factory=dict)
    #: No vacuum is due before this time.
    _vacuums_from_s: float = -math.inf

    @property
    def healths(self) -> tuple[Health, ...]:
        return self.archive, self.decode, self.mirror, self.register, self.upkeep

    def follow(self, policy: Policy) -> None:
        """Follow another policy. Failed work is attempted immediately."""
        if policy == self.policy:
            return
        self.policy = policy
        for health in self.healths:
            health.again_s = -math.inf

    # --- The archive ----------------------------------------------------------------------------------------

    def observe(self, now: float, ends: Mapping[int, int]) -> None:
        """Note the partitions' end offsets, which were read at `now` or later."""
        for partition, end in ends.items():
            waiting = self.partitions.get(partition)
            if waiting is None:
                # The age of its records is unknown, so they are due.
                waiting = self.partitions[partition] = Waiting(end, -math.inf)
            waiting.end = end
            waiting.observed_s = now
            if waiting.archived is not None and end <= waiting.archived:
                waiting.clear_s = now

    def committed(self, archived: Mapping[int, int]) -> None:
        """Note the table's archived offsets."""
        for partition, offset in archived.items():
            waiting = self.partitions.get(partition)
            if waiting is None:
                continue
            waiting.archived = offset
            if offset >= waiting.end:
                waiting.clear_s = waiting.observed_s

    def recover(self, now: float) -> None:
        """Forget an error of the archive that has nothing to archive, when its next attempt would be due."""
        if self.archive.is_ready(now):
            self.archive.succeeded()

    def due(self, now: float, bytes_an_offset: float | None = None, *, at_once: bool = False) -> set[int]:
        """Return the partitions whose records are due: one of them waits for `lag`, or `flush_bytes` of them wait.

        With `at_once`, all records are due.
        """
        if not self.archive.is_ready(now):
            return set()
        lag_s = 0.0 if at_once else self.policy.lag_s + (STANDBY_S if self.is_standby else 0.0)
        return {
            partition
            for partition, waiting in self.partitions.items()
            if waiting.archived is None
            or (
                waiting.offsets
                and (
                    now - waiting.clear_s >= lag_s
                    or (
                        bytes_an_offset is not None
                        and not self.is_standby
                        and waiting.offsets * bytes_an_offset >= self.policy.flush_bytes
                    )
                )
            )
        }

    def next_s(self) -> float:
        """Return the time at which records become due that wait now, infinity without any."""
        lag_s = self.policy.lag_s + (STANDBY_S if self.is_standby else 0.0)
        times = (waiting.clear_s + lag_s for waiting in self.partitions.values() if waiting.offsets)
        return max(min(times, default=math.inf), self.archive.again_s)

    @property
    def lag_offsets(self) -> int:
        """The number of offsets that wait for a commit."""
        return sum(waiting.offsets for waiting in self.partitions.values())

    def lag_s(self, now: float) -> float:
        """Return an upper bound of the time for which the oldest waiting record waits, 0 if none waits."""
        ages = (now - waiting.clear_s for waiting in self.partitions.values() if waiting.offsets)
        return max((age for age in ages if age < math.inf), default=0.0)

    # --- Upkeep ---------------------------------------------------------------------------------------------

    def retain_is_due(self, now: float, table: str = ARCHIVE) -> bool:
        """Return True if expired records of the archive, the typed or the dlq table are due to be dropped.

        They count as dropped then.
        """
        retain_s, every_s = self.policy.retain_s, RETAIN_EVERY_S
        if table != ARCHIVE:
            retain_s, every_s = self.policy.retain_typed_s, RETAIN_TYPED_EVERY_S
        if retain_s == math.inf or now - self._retained_s.get(table, -math.inf) < every_s:
            return False
        self._retained_s[table] = now
        return True

    def vacuum_is_due(self, now: float, last_s: float | None, table: str = ARCHIVE) -> bool:
        """Return True if a vacuum is due. It counts as done then. `last_s` is the time of the last one in the log."""
        before_s = max(self._vacuumed_s.get(table, -math.inf), -math.inf if last_s is None else last_s)
        is_due = now - before_s >= VACUUM_EVERY_S and now >= self._vacuums_from_s
        self._vacuumed_s[table] = now if is_due else before_s
        return is_due

    def postpone_vacuums(self, now: float) -> None:
        """Let no vacuum be due for a day."""
        self._vacuums_from_s = now + VACUUM_EVERY_S

    # --- The state ------------------------------------------------------------------------------------------

    @property
    def error(self) -> str:
        """The first error of the table's work, "" if there is none."""
        return next((health.error for health in self.healths if health.error), "")

    def state(self, now: float) -> State:
        errors = [health for health in self.healths if health.error]
        if any(not health.may_pass for health in errors):
            return State.FAILED
        if errors:
            return State.RETRYING
        if self.is_standby:
            return State.STANDBY
        is_behind = any(
            waiting.archived is None
            or (waiting.offsets and now - waiting.clear_s > self.policy.lag_s + COMMIT_S)
            for waiting in self.partitions.values()
        )
        return State.BEHIND if is_behind else State.CURRENT


def poll_s(lags_s: list[float]) -> float:
    """Return the interval in which to read end offsets for these lags, so that no record waits for much longer."""
    return min(LONGEST_POLL_S, max(SHORTEST_POLL_S, min(lags_s, default=math.inf) / POLLS_A_LAG))
