"""The same requests on two connections: one decodes Produce requests by comparison, the other one never does.

Everything that a client, an operator or a consumer can see has to be equal: bytes of responses, records, counts, lines
of the log, spans, and when the connection is closed.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
import trio
from attrs import define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from korvet.protocol.compression import Codec
from korvet.protocol.errors import ErrorCode
from korvet.protocol.frames import FrameReader
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from korvet.protocol.record_batch import build_batch
from korvet.protocol.repeated_produce import RepeatedProduce
from korvet.protocol.requests import decode_response, encode_request
from tests.server.ways import (
    IDS,
    NAMES,
    NOW_MS,
    TOPICS,
    Alter,
    Delete,
    Deny,
    Leave,
    Limit,
    Outcome,
    Served,
    Step,
    Way,
    outcome_of,
    outcomes,
)


@define
class Produce:
    """A Produce request. `damage` changes one byte of its frame."""

    topic: str
    version: int = 11
    partition: int = 0
    acks: int = -1
    batch: bytes = b""
    transactional_id: str | None = None
    damage: tuple[int, int] | None = None

    async def apply(self, served: Served) -> None:
        await served.ask(self.frame)

    @property
    def frame(self) -> bytes:
        data = TopicProduceData(
            name=self.topic,
            topic_id=IDS.get(self.topic, UUID(int=99)),
            partition_data=[PartitionProduceData(index=self.partition, records=[self.batch])],
        )
        request = ProduceRequest(
            transactional_id=self.transactional_id, acks=self.acks, timeout_ms=1000, topic_data=[data]
        )
        frame = bytearray(b"".join(encode_request(request, self.version, 7, "me")))
        if self.damage is not None:
            at, value = self.damage
            frame[4 + at % (len(frame) - 4)] = value
        return bytes(frame)


def both(*steps: Step) -> Outcome:
    """Return the outcome of the steps, which is the same without comparisons."""
    return outcomes(*steps, ways=[Way.AS_SERVED, Way.NEVER_COMPARES], is_wrapped=True)


def batch(value: bytes = b"v", *, timestamp: int = NOW_MS, **options: Any) -> bytes:
    return bytes(build_batch([(0, timestamp, b"k", value, ())], **options))


batches = st.builds(
    batch,
    st.sampled_from([b"", b"value", b"x" * 70, b"x" * 300]),
    timestamp=st.sampled_from([NOW_MS, 0, -1]),
    codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.ZSTD]),
    producer_id=st.sampled_from([-1, -1, 5, 6]),
    producer_epoch=st.sampled_from([0, 0, 1]),
    base_sequence=st.sampled_from([0, 1, 2, -1]),
    is_transactional=st.sampled_from([False] * 9 + [True]),
) | st.sampled_from([b"", b"no batch", batch()[:-1], batch() + b"x", batch() * 2])
produces = st.builds(
    Produce,
    topic=st.sampled_from(NAMES),
    version=st.sampled_from([3, 8, 9, 11, 13]),
    partition=st.sampled_from([0, 1, 2, -1]),
    acks=st.sampled_from([-1, 1, 0, 2]),
    batch=batches,
    transactional_id=st.sampled_from([None] * 9 + ["t"]),
    damage=st.none() | st.tuples(st.integers(0, 1000), st.integers(0, 255)),
)
# Most requests are like the one before.
likes = st.tuples(
    produces,
    st.lists(st.tuples(batches, st.sampled_from([0, 0, 1]), st.sampled_from([None, None, None, (150, 7)]))),
)
others = (
    st.builds(Delete, st.sampled_from(NAMES))
    | st.builds(Alter, st.sampled_from(NAMES), st.sampled_from([*TOPICS.values()]))
    | st.builds(Deny, st.lists(st.sampled_from(NAMES), max_size=3))
    | st.builds(Leave)
    | st.builds(Limit, st.sampled_from([1.0, 1e9]))
)


def expanded(like: tuple[Produce, list[tuple[bytes, int, tuple[int, int] | None]]]) -> list[Step]:
    first, rest = like
    return [
        first,
        *(evolve(first, batch=each, partition=partition, damage=damage) for each, partition, damage in rest),
    ]


steps = st.lists(likes.map(expanded) | others.map(lambda step: [step]), max_size=8)


@settings(max_examples=60, deadline=None)
@given(steps=steps)
def test_repeated_produces_are_served_as_others(steps: list[list[Step]]) -> None:
    both(*(step for part in steps for step in part))


WARM = [Produce("plain", batch=batch(b"%d" % number)) for number in range(3)]


def responses(outcome: Outcome) -> list[int]:
    """Return the error codes of the responses, which are of version 11 and of one partition of `plain`."""
    frames = FrameReader(10**6)
    frames.receive_data(outcome.sent)
    codes = []
    while (frame := frames.next_frame()) is not None:
        codes.append(
            decode_response(ProduceResponse, 11, frame)[1].responses[0].partition_responses[0].error_code
        )
    return codes


@pytest.mark.parametrize(
    "between, code",
    [
        (Delete("plain"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (Deny(["plain"]), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (Leave(), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (Alter("plain", {"max.message.bytes": "50"}), ErrorCode.MESSAGE_TOO_LARGE),
        (Alter("plain", {"min.insync.replicas": "2"}), ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
    ids=["deleted", "denied", "leaves", "smaller", "replicated"],
)
def test_change_between_two_requests_applies_to_the_second(between: Step, code: ErrorCode) -> None:
    assert [0, 0, 0, code] == responses(both(*WARM, between, Produce("plain", batch=batch(b"late"))))


def test_acks_0_error_closes_the_connection() -> None:
    unanswered = [evolve(each, acks=0) for each in WARM]
    outcome = both(*unanswered, Delete("plain"), unanswered[0], unanswered[0])

    assert outcome.is_closed
    assert b"" == outcome.sent
    assert any("UNKNOWN_TOPIC_OR_PARTITION" in line for _, line in outcome.lines)


def test_quota_throttles_repeated_requests() -> None:
    outcome = both(Limit(1.0), *WARM, *WARM)
    frames = FrameReader(10**6)
    frames.receive_data(outcome.sent)
    times = []
    while (frame := frames.next_frame()) is not None:
        times.append(decode_response(ProduceResponse, 11, frame)[1].throttle_time_ms)

    assert 6 == len(times)
    assert all(times)


def test_duplicates_and_gaps_of_an_idempotent_producer() -> None:
    def sent(sequence: int) -> Produce:
        return Produce("plain", batch=batch(producer_id=5, producer_epoch=0, base_sequence=sequence))

    outcome = both(*map(sent, (0, 1, 2, 2, 9, 3)))

    assert [0, 0, 0, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] == responses(outcome)[:5]
    assert len(outcome.records["plain-0"]) in (3, 4)


def test_requests_are_decoded_by_comparison_with_all_options() -> None:
    with patch.object(RepeatedProduce, "encode", autospec=True, side_effect=RepeatedProduce.encode) as encode:
        outcome = trio.run(
            lambda: outcome_of([Limit(1e9), *WARM, *WARM], Way.AS_SERVED, is_wrapped=True),
            clock=MockClock(autojump_threshold=0),
        )

    assert [0] * 6 == responses(outcome)
    assert 6 == len(outcome.spans)
    assert 4 == encode.call_count
