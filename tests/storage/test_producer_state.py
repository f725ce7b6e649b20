"""The rules for idempotent producers, without a store around them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.protocol.errors import InvalidProducerEpoch, KafkaError, OutOfOrderSequenceNumber
from korvet.storage.producer_state import (
    MAX_SEQUENCE,
    AppendedBatch,
    ProducerStates,
    next_sequence,
    producer_id_at,
)

DAY_MS = 86_400_000

Send = Callable[..., AppendedBatch | None]


@pytest.fixture
def states() -> ProducerStates:
    return ProducerStates(DAY_MS)


@pytest.fixture
def send(states: ProducerStates) -> Send:
    return sender(states)


def sender(states: ProducerStates) -> Send:
    """Return a function that checks a batch and records it if it is new. Its base offset is the number of the call."""
    calls = 0

    def send(
        first: int, last: int, *, producer_id: int = 7, epoch: int = 0, now_ms: int = 0
    ) -> AppendedBatch | None:
        nonlocal calls
        calls += 1
        duplicate = states.check(producer_id, epoch, first, last, now_ms=now_ms)
        if duplicate is None:
            states.remember(producer_id, epoch, AppendedBatch(first, last, calls), now_ms=now_ms)
        return duplicate

    return send


def test_consecutive_batches_are_new(send: Send) -> None:
    assert [None, None, None] == [send(0, 2), send(3, 3), send(4, 9)]


def test_repeated_batch_is_a_duplicate(send: Send) -> None:
    send(0, 2)
    send(3, 3)

    assert AppendedBatch(0, 2, 1) == send(0, 2)
    assert AppendedBatch(3, 3, 2) == send(3, 3)


def test_last_five_batches_are_recognised(send: Send) -> None:
    for number in range(6):
        send(number, number)

    assert [AppendedBatch(number, number, number + 1) for number in range(1, 6)] == [
        send(number, number) for number in range(1, 6)
    ]
    with pytest.raises(OutOfOrderSequenceNumber):
        send(0, 0)


@pytest.mark.parametrize("first, last", [(0, 1), (0, 3), (1, 2), (2, 2), (4, 4), (2**31 - 1, 2**31 - 1)])
def test_other_sequences_are_out_of_order(send: Send, first: int, last: int) -> None:
    send(0, 2)

    with pytest.raises(OutOfOrderSequenceNumber, match="3 comes next"):
        send(first, last)


def test_lower_epoch_is_fenced_also_for_duplicates(send: Send) -> None:
    send(0, 2)
    send(0, 2, epoch=1)
    for first, last in ((0, 2), (3, 3)):
        with pytest.raises(InvalidProducerEpoch):
            send(first, last, epoch=0)


def test_higher_epoch_must_start_at_sequence_0(send: Send) -> None:
    send(0, 2)
    with pytest.raises(OutOfOrderSequenceNumber):
        send(3, 3, epoch=1)

    assert send(0, 2, epoch=1) is None
    assert send(3, 3, epoch=1) is None


def test_unknown_producer_must_start_at_sequence_0(send: Send) -> None:
    with pytest.raises(OutOfOrderSequenceNumber, match="has sequence 3; 0 comes first"):
        send(3, 3, epoch=9)

    assert send(0, 2, epoch=9) is None
    assert send(3, 3, epoch=9) is None


def test_producer_that_may_have_expired_may_start_at_any_sequence(states: ProducerStates, send: Send) -> None:
    states.complete_from = 8
    with pytest.raises(OutOfOrderSequenceNumber):
        send(1234, 1240, producer_id=8)

    assert send(1234, 1240, epoch=9) is None
    assert send(1241, 1241, epoch=9) is None


def test_only_ids_older_than_an_expiration_may_have_expired() -> None:
    now_ms = 1_800_000_000_000
    older, younger = producer_id_at(now_ms - 64), producer_id_at(now_ms + 64)
    states = ProducerStates(DAY_MS)
    send = sender(states)
    send(0, 0, producer_id=1, now_ms=now_ms - DAY_MS)
    with pytest.raises(OutOfOrderSequenceNumber):
        send(5, 5, producer_id=older, now_ms=now_ms)

    assert 1 == states.expire(now_ms)
    assert send(5, 5, producer_id=older, now_ms=now_ms) is None
    with pytest.raises(OutOfOrderSequenceNumber):
        send(5, 5, producer_id=younger, now_ms=now_ms)


def test_producer_ids_encode_their_time_below_2_to_the_53rd() -> None:
    times = [0, 1_577_836_800_000, 1_577_836_800_064, 1_763_900_000_000, 2_650_000_000_000]
    ids = [producer_id_at(time) for time in times]

    assert [0, 0, 2**19] == ids[:3]
    assert ids == sorted(ids)
    assert ids[-1] < 2**53


def test_sequences_wrap_around_within_a_batch(states: ProducerStates, send: Send) -> None:
    states.complete_from = 8
    send(MAX_SEQUENCE - 1, 1)  # two, and two more after the largest

    assert AppendedBatch(MAX_SEQUENCE - 1, 1, 1) == send(MAX_SEQUENCE - 1, 1)
    assert send(2, 2) is None


def test_largest_sequence_is_followed_by_0(states: ProducerStates, send: Send) -> None:
    states.complete_from = 8
    send(MAX_SEQUENCE, MAX_SEQUENCE)
    with pytest.raises(OutOfOrderSequenceNumber, match="0 comes next"):
        send(1, 1)

    assert send(0, 0) is None


def test_producers_have_independent_sequences(send: Send) -> None:
    send(0, 2, producer_id=1)

    assert send(0, 2, producer_id=2) is None
    assert AppendedBatch(0, 2, 1) == send(0, 2, producer_id=1)


def test_check_does_not_record_the_batch(states: ProducerStates) -> None:
    states.check(7, 0, 0, 2, now_ms=0)

    assert 0 == len(states)


def test_producer_without_appends_expires(send: Send) -> None:
    send(0, 2, epoch=3)

    assert AppendedBatch(0, 2, 1) == send(0, 2, epoch=3, now_ms=DAY_MS - 1)
    assert send(100, 100, epoch=0, now_ms=DAY_MS) is None


def test_appends_extend_the_life_of_a_producer_but_duplicates_do_not(send: Send) -> None:
    send(0, 0)
    send(1, 1, now_ms=DAY_MS - 1)
    send(0, 0, now_ms=2 * DAY_MS - 2)

    assert AppendedBatch(0, 0, 1) == send(0, 0, now_ms=2 * DAY_MS - 2)
    assert send(0, 0, now_ms=2 * DAY_MS - 1) is None


def test_expired_producers_are_removed_in_order_of_their_last_append(
    states: ProducerStates, send: Send
) -> None:
    for producer_id in range(5):
        send(0, 0, producer_id=producer_id, now_ms=producer_id)
    send(1, 1, producer_id=0, now_ms=10)

    assert 2 == states.expire(DAY_MS + 2)  # 1 and 2
    assert [0, 3, 4] == sorted(states.producers)
    assert 2 == states.expire(DAY_MS + 9)
    assert [0] == sorted(states.producers)


def test_producers_do_not_expire_early_when_the_clock_steps_back(states: ProducerStates, send: Send) -> None:
    send(0, 0, producer_id=1, now_ms=DAY_MS)
    send(0, 0, producer_id=2, now_ms=0)

    assert 0 == states.expire(DAY_MS)
    assert AppendedBatch(0, 0, 1) == send(0, 0, producer_id=1, now_ms=0)
    assert send(0, 0, producer_id=2, now_ms=DAY_MS) is None


# At most ten times as many records as a batch may have. If five batches used all 2^31 sequences, the next one could
# have the sequence of one of them, and would be treated as its duplicate, as in Kafka.
@given(counts=st.lists(st.integers(1, 10**7), min_size=1, max_size=20), start=st.integers(0, MAX_SEQUENCE))
def test_batches_of_any_size_and_first_sequence_are_consecutive(counts: list[int], start: int) -> None:
    send = sender(ProducerStates(DAY_MS, complete_from=8))
    first = start
    for count in counts:
        last = (first + count - 1) % 2**31

        assert send(first, last) is None
        assert send(first, last) is not None
        first = next_sequence(last)


@given(
    batches=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(1, 3)), max_size=40),
)
def test_accepted_batches_have_no_gaps(batches: list[tuple[int, int, int]]) -> None:
    send = sender(ProducerStates(DAY_MS))
    accepted: list[tuple[int, int, int]] = []
    for epoch, first, count in batches:
        try:
            duplicate = send(first, first + count - 1, epoch=epoch)
        except KafkaError:
            continue
        if duplicate is None:
            accepted.append((epoch, first, first + count - 1))
        else:
            assert (epoch, first, first + count - 1) in accepted

    for before, after in itertools.pairwise(accepted):
        same_epoch = before[0] == after[0]
        assert before[0] <= after[0]
        assert (before[2] + 1 if same_epoch else 0) == after[1]
