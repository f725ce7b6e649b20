"""The schedule of tables by virtual time, without brokers and tables."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.pipeline.archive import TopicProgress
from korvet.pipeline.run.policy import Policy
from korvet.pipeline.run.schedule import LONGEST_RETRY_S, STANDBY_S, Health, State, TableSchedule, poll_s


def schedule(**policy: float) -> TableSchedule:
    """Return a schedule of one partition, whose table has been read at 0."""
    made = TableSchedule(Policy("t", **policy))  # type: ignore[arg-type]
    made.observe(0, {0: 100})
    made.committed({0: 100})
    return made


def test_table_that_was_not_read_yet_is_due() -> None:
    made = TableSchedule(Policy("t"))
    made.observe(0, {0: 5, 1: 0})

    assert {0, 1} == made.due(0)
    assert State.BEHIND == made.state(0)


def test_records_are_due_when_they_have_waited_for_the_lag() -> None:
    made = schedule(lag_s=60)
    made.observe(10, {0: 100})
    made.observe(15, {0: 101})  # appended at 10 or later

    assert (set(), 70, 5) == (made.due(69), made.next_s(), made.lag_s(15))
    assert {0} == made.due(70)
    assert State.CURRENT == made.state(70)
    assert State.BEHIND == made.state(76)
    assert 1 == made.lag_offsets


def test_idle_partitions_are_never_due() -> None:
    made = schedule(lag_s=1)
    made.observe(1000, {0: 100})

    assert set() == made.due(1000)
    assert math.inf == made.next_s()


def test_records_are_due_earlier_if_flush_bytes_wait() -> None:
    made = schedule(lag_s=60, flush_bytes=1000)
    made.observe(1, {0: 109})

    assert set() == made.due(1, bytes_an_offset=100)
    made.observe(2, {0: 110})
    assert {0} == made.due(2, bytes_an_offset=100)
    assert set() == made.due(2, bytes_an_offset=None)


def test_commit_up_to_the_observed_end_starts_the_next_wait() -> None:
    made = schedule(lag_s=60)
    made.observe(61, {0: 200})
    made.committed({0: 200})
    made.observe(66, {0: 201})

    assert 121 == made.next_s()


def test_commit_of_a_part_leaves_the_rest_due() -> None:
    made = schedule(lag_s=60)
    made.observe(60, {0: 200})
    made.committed({0: 150})

    assert {0} == made.due(60)


def test_new_partition_is_due() -> None:
    made = schedule()
    made.observe(1, {0: 100, 1: 0})

    assert {1} == made.due(1)


def test_failures_that_may_pass_are_retried_with_increasing_delay() -> None:
    health = Health()
    delays = []
    for _ in range(12):
        health.failed(0, "away", may_pass=True)
        delays.append(health.again_s)

    assert [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300] == delays
    health.succeeded()
    assert health.is_ready(-math.inf)


def test_failed_table_is_attempted_again_later_and_on_a_new_policy() -> None:
    made = schedule(lag_s=1)
    made.observe(10, {0: 200})
    made.archive.failed(10, "wrong table", may_pass=False)

    assert State.FAILED == made.state(10)
    assert (set(), {0}) == (made.due(10 + LONGEST_RETRY_S - 1), made.due(10 + LONGEST_RETRY_S))
    made.follow(Policy("t", lag_s=1))
    assert set() == made.due(11)
    made.follow(Policy("t", lag_s=2))
    assert {0} == made.due(11)


def test_state_is_that_of_the_worst_work() -> None:
    made = schedule()
    made.mirror.failed(0, "the catalogue is away", may_pass=True)
    assert (State.RETRYING, "the catalogue is away") == (made.state(0), made.error)
    made.decode.failed(0, "a bad schema", may_pass=False)
    assert (State.FAILED, "a bad schema") == (made.state(0), made.error)
    assert {0} != made.due(0)
    made.observe(60, {0: 101})
    assert {0} == made.due(60)  # the archive goes on


def test_standby_commits_what_the_other_run_has_left_waiting() -> None:
    made = schedule(lag_s=60)
    made.observe(60, {0: 200})
    assert {0} == made.due(60)
    made.is_standby = True

    assert (set(), {0}) == (made.due(60), made.due(60 + STANDBY_S))
    assert State.STANDBY == made.state(60)
    made.is_standby = False
    assert {0} == made.due(60)


@pytest.mark.parametrize(
    "commits, contended",
    [
        ("ll", False),
        ("lll", True),
        ("lw" * 4, False),
        ("lw" * 5 + "l", True),
        ("lww" * 20, False),
        ("lllw", False),
    ],
)
def test_archiver_that_loses_commits_is_contended(commits: str, contended: bool) -> None:
    progress = TopicProgress("orders")
    for each in commits:
        (progress.lost if each == "l" else progress.won)()

    assert contended == progress.is_contended
    assert commits.count("l") == progress.conflicts


def test_contention_ends_with_the_next_commit_however_long_it_was() -> None:
    progress = TopicProgress("orders")
    for _ in range(1000):
        progress.lost()
    progress.won()

    assert not progress.is_contended


def test_retention_and_vacuum_are_due_once_in_their_interval() -> None:
    made = schedule(retain_s=1000)

    assert [True, False, True] == [made.retain_is_due(at) for at in (0, 3599, 3600)]
    assert not schedule().retain_is_due(0)
    assert [True, False, True] == [made.vacuum_is_due(at, None) for at in (0, 86_399, 86_400)]
    assert [True, False] == [made.vacuum_is_due(at, None, "typed") for at in (0, 86_399)]
    made.postpone_vacuums(100_000)
    assert [False, True] == [made.vacuum_is_due(at, None) for at in (186_399, 186_400)]
    assert not schedule().vacuum_is_due(0, -3600.0)  # an earlier run has done it


@pytest.mark.parametrize("lags_s, interval_s", [([], 5.0), ([60.0], 5.0), ([60.0, 4.0], 1.0), ([0.1], 0.1)])
def test_end_offsets_are_read_often_enough_for_the_shortest_lag(
    lags_s: list[float], interval_s: float
) -> None:
    assert interval_s == poll_s(lags_s)


@given(
    lag_s=st.sampled_from([0.5, 5.0, 60.0]),
    appends=st.lists(st.floats(0.01, 50.0), min_size=1, max_size=40),
)
def test_no_record_waits_longer_than_the_lag_and_one_interval(lag_s: float, appends: list[float]) -> None:
    """Append a record after each of these pauses. Commits take no time."""
    made = schedule(lag_s=lag_s)
    times = deque[float]()
    at = 0.0
    for pause in appends:
        at += pause
        times.append(at)
    waiting = deque[float]()
    now, end = 0.0, 100
    while times or waiting:
        now = min(now + poll_s([lag_s]), max(now + 0.02, made.next_s()))
        while times and times[0] <= now:
            waiting.append(times.popleft())
            end += 1
        made.observe(now, {0: end})
        if made.due(now):
            assert now - waiting[0] <= lag_s + poll_s([lag_s]) + 0.02
            made.committed({0: end})
            waiting.clear()
