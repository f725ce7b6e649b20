"""The state machine of a share partition, beside a model that has one entry for each record."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

import pytest
from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from korvet.protocol.errors import InvalidRecordState, InvalidRequest
from korvet.share.partition import Read, SharePartition, Span
from korvet.storage.shares import Acknowledged, AckType, Run, ShareLimits

LIMITS = ShareLimits(lock_ms=100, max_deliveries=3, max_locks=12)
MEMBERS = st.sampled_from(["alice", "bob", "carol"])


def partition(offset: int = 0, limits: ShareLimits = LIMITS) -> SharePartition:
    new = SharePartition(limits=limits)
    new.begin(offset)
    return new


def whole(start: int, end: int) -> Read:
    return Read(start, end, [Span(start, end - 1)])


def acquired(runs: Sequence[Run]) -> list[tuple[int, int, int]]:
    return [(run.first, run.last, run.deliveries) for run in runs]


def test_new_records_are_acquired_once() -> None:
    share = partition()

    assert acquired(share.acquire("alice", whole(0, 10), 4, 0)) == [(0, 3, 1)]
    assert acquired(share.acquire("bob", whole(4, 10), 100, 0)) == [(4, 9, 1)]
    assert (share.start, share.end, share.next_offset()) == (0, 10, 10)


def test_accepted_records_move_the_start_offset() -> None:
    share = partition()
    share.acquire("alice", whole(0, 10), 10, 0)

    share.acknowledge("alice", [Acknowledged(3, 5, AckType.ACCEPT)], 1)
    assert (share.start, share.in_flight) == (0, 7)
    share.acknowledge("alice", [Acknowledged(0, 2, AckType.ACCEPT), Acknowledged(6, 9, AckType.REJECT)], 1)
    assert (share.start, share.in_flight, share.runs) == (10, 0, [])


def test_released_records_are_delivered_again_up_to_the_limit() -> None:
    share = partition()

    for count in (1, 2, 3):
        assert acquired(share.acquire("alice", whole(share.next_offset() or 0, 1), 1, 0)) == [(0, 0, count)]
        share.acknowledge("alice", [Acknowledged(0, 0, AckType.RELEASE)], 0)

    assert (share.start, share.runs) == (1, [])


def test_attempts_near_the_limit_are_made_with_fewer_and_fewer_records() -> None:
    share = partition(limits=ShareLimits(lock_ms=100, max_deliveries=6))
    sizes = []
    for _ in range(6):
        end = share.next_offset() or 0
        got = share.acquire("alice", whole(end, 16), 16, 0)
        sizes.append(sum(run.size for run in got))
        share.acknowledge("alice", [Acknowledged(0, got[-1].last, AckType.RELEASE)], 0)

    assert sizes == [16, 16, 16, 8, 4, 1]
    assert share.start == 1


def test_released_records_above_a_lowered_limit_come_once_more_and_alone() -> None:
    share = SharePartition(end=2, runs=[Run(0, 1, 3)], limits=ShareLimits(max_deliveries=2))

    assert acquired(share.acquire("alice", whole(0, 4), 8, 0)) == [(0, 0, 4)]
    share.acknowledge("alice", [Acknowledged(0, 0, AckType.RELEASE)], 0)
    assert acquired(share.acquire("alice", whole(1, 4), 8, 0)) == [(1, 1, 4)]
    assert acquired(share.acquire("alice", whole(2, 4), 8, 0)) == [(2, 3, 1)]


def test_a_last_attempt_waits_for_a_request_of_its_own() -> None:
    share = SharePartition(end=4, runs=[Run(0, 1, 1), Run(2, 3, 2)], limits=LIMITS)

    assert acquired(share.acquire("alice", whole(0, 8), 8, 0)) == [(0, 1, 2)]
    assert acquired(share.acquire("bob", whole(2, 8), 8, 0)) == [(2, 2, 3)]
    assert acquired(share.acquire("carol", whole(3, 8), 8, 0)) == [(3, 3, 3)]
    assert acquired(share.acquire("carol", whole(4, 8), 8, 0)) == [(4, 7, 1)]


def test_a_lock_ends_by_itself_unless_it_is_renewed() -> None:
    share = partition()
    share.acquire("alice", whole(0, 2), 2, 0)
    share.acknowledge("alice", [Acknowledged(1, 1, AckType.RENEW)], 50)
    assert share.wake_ms == 100

    share.tick(100)

    assert share.runs == [Run(0, 0, 1), Run(1, 1, 1, "alice", 150)]
    with pytest.raises(InvalidRecordState):
        share.acknowledge("alice", [Acknowledged(0, 1, AckType.ACCEPT)], 100)
    assert share.in_flight == 2


def test_renewing_can_be_forbidden() -> None:
    share = partition(limits=ShareLimits(can_renew=False))
    share.acquire("alice", whole(0, 1), 1, 0)

    with pytest.raises(InvalidRecordState):
        share.acknowledge("alice", [Acknowledged(0, 0, AckType.RENEW)], 0)


def test_acknowledging_what_was_never_delivered_is_invalid() -> None:
    share = partition()
    share.acquire("alice", whole(0, 2), 2, 0)

    with pytest.raises(InvalidRequest):
        share.acknowledge("alice", [Acknowledged(0, 2, AckType.ACCEPT)], 0)
    with pytest.raises(InvalidRecordState):
        share.acknowledge("bob", [Acknowledged(0, 1, AckType.ACCEPT)], 0)
    assert share.in_flight == 2


def test_acquired_runs_have_only_offsets_with_records() -> None:
    share = partition()

    runs = share.acquire("alice", Read(0, 100, [Span(0, 1), Span(50, 50), Span(98, 98)]), 3, 0)

    assert acquired(runs) == [(0, 1, 1), (50, 50, 1)]
    assert share.end == 98
    share.acknowledge("alice", [Acknowledged(0, 50, AckType.GAP)], 0)
    assert share.in_flight == 0


def test_available_records_that_are_gone_are_finished() -> None:
    share = partition()
    share.acquire("alice", whole(0, 10), 10, 0)
    share.release("alice")

    runs = share.acquire("bob", Read(0, 10, [Span(2, 3), Span(9, 9)]), 10, 0)

    assert acquired(runs) == [(2, 3, 2), (9, 9, 2)]
    assert share.in_flight == 3


def test_the_limit_of_locks_holds_records_back() -> None:
    share = partition()

    share.acquire("alice", whole(0, 20), 100, 0)

    assert (share.in_flight, share.next_offset(), share.end) == (12, None, 12)


def test_retention_finishes_records_in_flight() -> None:
    share = partition()
    share.acquire("alice", whole(0, 10), 10, 0)

    share.archive_below(7)
    assert share.start == 7
    share.archive_below(30)
    assert (share.start, share.end, share.runs) == (30, 30, [])


def test_records_that_the_store_has_lost_are_forgotten() -> None:
    share = partition()
    share.acquire("alice", whole(0, 10), 10, 0)

    share.forget_from(4)

    assert (share.end, share.in_flight) == (4, 4)


def test_a_loaded_state_gives_acquired_records_the_full_lock() -> None:
    share = SharePartition(end=5, runs=[Run(0, 1, 1, "alice"), Run(3, 3, 2)], limits=LIMITS)

    share.resume(1000)

    assert share.runs == [Run(0, 1, 1, "alice", 1100), Run(3, 3, 2)]
    assert not share.is_unsaved


# --- A model -----------------------------------------------------------------------------------------------------


@define
class Record:
    """A record in the model: whether it is finished, its holder, its count and the end of its lock."""

    count: int = 0
    member: str = ""
    deadline_ms: float = inf
    is_finished: bool = False
    is_delivered: bool = False


@define
class Model:
    records: dict[int, Record] = field(factory=dict)

    def end_lock(self, record: Record) -> None:
        if record.count >= LIMITS.max_deliveries:
            record.is_finished = True
        record.member, record.deadline_ms = "", inf

    def tick(self, now_ms: float) -> None:
        for record in self.records.values():
            if record.deadline_ms <= now_ms:
                self.end_lock(record)

    def in_flight(self) -> dict[int, Record]:
        return {o: each for o, each in self.records.items() if each.is_delivered and not each.is_finished}


class SharePartitionMachine(RuleBasedStateMachine):
    """Every step is done by the machine and by the model, which must agree on every record."""

    @initialize(gaps=st.sets(st.integers(0, 39), max_size=15))
    def begin(self, gaps: set[int]) -> None:
        self.now_ms = 0.0
        self.share = partition()
        self.model = Model({offset: Record() for offset in range(40) if offset not in gaps})

    @rule(member=MEMBERS, size=st.integers(1, 20), most=st.integers(1, 8))
    def acquire(self, member: str, size: int, most: int) -> None:
        self.tick()
        start = self.share.next_offset()
        flying = self.model.in_flight()
        available = [offset for offset, each in flying.items() if not each.member]
        assert (start is None) == (not available and len(flying) >= LIMITS.max_locks)
        if start is None or start >= 40:
            return
        read_end = min(start + size, 40)
        spans = [Span(offset, offset) for offset in self.model.records if start <= offset < read_end]

        runs = self.share.acquire(member, Read(start, read_end, spans), most, self.now_ms)

        expected: list[int] = []
        room = most
        for offset in [offset for offset in available if start <= offset < read_end]:
            is_last_attempt = flying[offset].count == LIMITS.max_deliveries - 1
            if len(expected) == room or (is_last_attempt and expected):
                room = 0
                break
            expected.append(offset)
            if is_last_attempt:
                room = 1
        room = min(room - len(expected), LIMITS.max_locks - len(flying))
        new = [each.first for each in spans if not self.model.records[each.first].is_delivered]
        expected += new[: max(room, 0)]
        for offset in expected:
            record = self.model.records[offset]
            record.count += 1
            record.member, record.deadline_ms, record.is_delivered = (
                member,
                self.now_ms + LIMITS.lock_ms,
                True,
            )
        offsets = [offset for run in runs for offset in range(run.first, run.last + 1)]
        assert offsets == sorted(expected)
        assert all(a.last < b.first for a, b in pairwise(runs))
        for run in runs:
            assert {self.model.records[each].count for each in range(run.first, run.last + 1)} == {
                run.deliveries
            }

    @rule(
        member=MEMBERS,
        first=st.integers(0, 39),
        size=st.integers(1, 10),
        kind=st.sampled_from([AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW]),
    )
    def acknowledge(self, member: str, first: int, size: int, kind: AckType) -> None:
        self.tick()
        last = first + size - 1
        flying = self.model.in_flight()
        before = list(self.share.runs)
        offsets = range(max(first, self.share.start), last + 1)
        is_valid = all(offset in flying and flying[offset].member == member for offset in offsets)
        try:
            self.share.acknowledge(member, [Acknowledged(first, last, kind)], self.now_ms)
        except InvalidRequest:
            assert last >= self.share.end
        except InvalidRecordState:
            assert not is_valid
        else:
            assert is_valid
            for offset in offsets:
                record = flying[offset]
                if kind is AckType.RELEASE:
                    self.model.end_lock(record)
                elif kind is AckType.RENEW:
                    record.deadline_ms = self.now_ms + LIMITS.lock_ms
                else:
                    record.is_finished = True
            return
        assert self.share.runs == before

    @rule(member=MEMBERS)
    def release(self, member: str) -> None:
        self.share.release(member)
        for record in self.model.in_flight().values():
            if record.member == member:
                self.model.end_lock(record)

    @rule(passed_ms=st.sampled_from([1, 30, 100]))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.tick()

    def tick(self) -> None:
        self.share.tick(self.now_ms)
        self.model.tick(self.now_ms)

    @invariant()
    def both_agree(self) -> None:
        found = {
            offset: (run.deliveries, run.member, run.deadline_ms)
            for run in self.share.runs
            for offset in range(run.first, run.last + 1)
        }
        assert found == {o: (e.count, e.member, e.deadline_ms) for o, e in self.model.in_flight().items()}
        assert all(not each.is_delivered for o, each in self.model.records.items() if o >= self.share.end)
        assert self.share.wake_ms == min((each[2] for each in found.values()), default=inf)
        assert self.share.in_flight <= LIMITS.max_locks


TestSharePartitionMachine = SharePartitionMachine.TestCase
TestSharePartitionMachine.settings = settings(deadline=None, max_examples=100, stateful_step_count=30)
