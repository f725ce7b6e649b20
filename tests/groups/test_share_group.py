"""The state machine of a share group's members, its assignor and its document."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from korvet.groups.assignors import Candidate, assign_shares
from korvet.groups.consumer_members import Beat
from korvet.groups.document import UnreadableDocument
from korvet.groups.share import ShareGroup, ShareGroupLimits, ShareHeartbeat, ShareState
from korvet.groups.share_document import read_share, written_share
from korvet.groups.subscriptions import Topic
from korvet.protocol.errors import FencedMemberEpoch, GroupMaxSizeReached, UnknownMemberId

JOBS = UUID(int=1)
MAILS = UUID(int=2)
LIMITS = ShareGroupLimits(session_timeout_ms=1000, max_size=3)


@define
class Conversation:
    """A group about the topics `jobs` and `mails`, of two partitions and one."""

    group: ShareGroup = field(factory=lambda: ShareGroup("g", LIMITS))
    topics: dict[str, Topic] = field(
        factory=lambda: {"jobs": Topic("jobs", JOBS, 2), "mails": Topic("mails", MAILS, 1)}
    )
    now_ms: float = 0.0

    def join(self, member_id: str, *names: str) -> Beat:
        return self.beat(member_id, 0, *(names or ("jobs",)))

    def beat(self, member_id: str, epoch: int, *names: str) -> Beat:
        request = ShareHeartbeat(
            member_id=member_id, member_epoch=epoch, names=frozenset(names) if names else None
        )
        return self.group.heartbeat(request, self.topics, self.now_ms)

    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.group.tick(self.now_ms)


def test_members_share_partitions() -> None:
    talk = Conversation()

    assert Beat("a", 1, {JOBS: frozenset((0, 1))}) == talk.join("a")
    assert {JOBS: frozenset((1,))} == talk.join("b").assignment
    assert Beat("a", 2, {JOBS: frozenset((0,))}) == talk.beat("a", 1)
    third = talk.join("c").assignment
    assert third in ({JOBS: frozenset((0,))}, {JOBS: frozenset((1,))})
    assert talk.group.state is ShareState.STABLE


def test_a_steady_heartbeat_has_no_assignment() -> None:
    talk = Conversation()
    talk.join("a")
    talk.group.is_unsaved = False

    assert Beat("a", 1) == talk.beat("a", 1)
    assert not talk.group.is_unsaved


def test_a_member_whose_answer_was_lost_may_repeat_its_epoch() -> None:
    talk = Conversation()
    talk.join("a")
    talk.join("b")
    talk.beat("a", 1)

    assert Beat("a", 2, {JOBS: frozenset((0,))}) == talk.beat("a", 1)


def test_wrong_epochs_are_fenced() -> None:
    talk = Conversation()
    talk.join("a")

    for epoch in (2, 7):
        with pytest.raises(FencedMemberEpoch):
            talk.beat("a", epoch)
    with pytest.raises(UnknownMemberId):
        talk.beat("b", 1)
    with pytest.raises(UnknownMemberId):
        talk.beat("b", -1)


def test_leaving_and_timeouts_remove_members() -> None:
    talk = Conversation()
    talk.join("a")
    talk.join("b")

    assert Beat("b", -1) == talk.beat("b", -1)
    assert Beat("a", 3, {JOBS: frozenset((0, 1))}) == talk.beat("a", 1)
    talk.wait(999)
    assert talk.group.members
    talk.wait(1)
    assert talk.group.state is ShareState.EMPTY


def test_the_group_has_a_maximum_size() -> None:
    talk = Conversation()
    for member_id in "abc":
        talk.join(member_id)

    with pytest.raises(GroupMaxSizeReached):
        talk.join("d")
    talk.join("a")


def test_new_topics_and_partitions_are_assigned() -> None:
    talk = Conversation()
    talk.join("a", "jobs", "later")

    talk.topics = {**talk.topics, "later": Topic("later", UUID(int=9), 1)}

    assert Beat("a", 2, {JOBS: frozenset((0, 1)), UUID(int=9): frozenset((0,))}) == talk.beat("a", 1)
    assert Beat("a", 3, {MAILS: frozenset((0,))}) == talk.beat("a", 2, "mails")


def test_a_document_restores_the_group() -> None:
    talk = Conversation()
    talk.join("a")
    talk.join("b", "jobs", "mails")

    group, since_ms = read_share("g", written_share(talk.group, 5), LIMITS)
    group.resume(0)

    assert since_ms == 5
    assert written_share(group, 5) == written_share(talk.group, 5)
    talk.group = group
    assert talk.beat("a", 1).member_epoch == 2
    talk.wait(1000)
    assert group.state is ShareState.EMPTY


@pytest.mark.parametrize(
    "document", [b"{", b"[]", b'{"type": "share", "format": 2}', b'{"type": "x", "format": 9}']
)
def test_unreadable_documents_are_refused(document: bytes) -> None:
    with pytest.raises(UnreadableDocument):
        read_share("g", document, LIMITS)


@given(
    partitions=st.integers(0, 9),
    rounds=st.lists(st.sets(st.sampled_from("abcdefghij"), min_size=1), min_size=1, max_size=4),
)
def test_every_partition_has_a_member_and_every_member_a_partition(
    partitions: int, rounds: list[set[str]]
) -> None:
    counts = {JOBS: partitions} if partitions else {}
    previous: dict[str, dict[UUID, frozenset[int]]] = {}
    for members in rounds:
        candidates = [
            Candidate(each, None, frozenset(counts), previous.get(each, {})) for each in sorted(members)
        ]
        target = assign_shares(candidates, counts)
        assert (
            assign_shares(
                [Candidate(each, None, frozenset(counts), target[each]) for each in sorted(members)], counts
            )
            == target
        )
        sizes = [len(target[each].get(JOBS, ())) for each in members]
        holders = Counter(number for each in target.values() for number in each.get(JOBS, ()))
        assert max(sizes) - min(sizes) <= 1
        assert set(holders) == set(range(partitions))
        if partitions:
            assert min(sizes) >= 1
            assert max(holders.values()) - min(holders.values()) <= 1
        previous = {each: dict(assignment) for each, assignment in target.items()}
