"""Conversations with a consumer group: korvet agrees with the model, and differences are found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from korvet.groups.members import State
from korvet.testing import Error, RunningBroker, running_broker
from korvet.testing.group_conversation import GroupAction, GroupConversation, GroupStep
from korvet.testing.strategies import group_conversations

PATIENT = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
JOIN, SYNC, HEARTBEAT, COMMIT, LEAVE = GroupAction


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningBroker]:
    with running_broker() as broker:
        broker.create_topic("orders")
        yield broker


@pytest.fixture
def broker(shared: RunningBroker) -> Iterator[RunningBroker]:
    yield shared
    shared.faults.clear()


def play(broker: RunningBroker, steps: list[GroupStep]) -> GroupConversation:
    """Play the steps in a new group."""
    group = broker.new_name("group")
    with GroupConversation.with_broker(broker.bootstrap_servers, topic="orders", group=group) as talk:
        talk.play(steps)
    return talk


@settings(PATIENT, max_examples=200)
@given(group_conversations(members=4, max_steps=40))
def test_group_agrees_with_the_model(broker: RunningBroker, steps: list[GroupStep]) -> None:
    play(broker, steps)


def test_members_join_sync_commit_and_leave(broker: RunningBroker) -> None:
    steps = [
        GroupStep(0, JOIN),
        GroupStep(0, SYNC),
        GroupStep(1, JOIN, place=9),  # waits for the first member
        GroupStep(1, SYNC),  # nothing is sent
        GroupStep(0, HEARTBEAT),
        GroupStep(0, JOIN, place=5),
        GroupStep(1, SYNC),  # waits for the leader
        GroupStep(0, COMMIT),
        GroupStep(0, SYNC),
        GroupStep(1, COMMIT, offset=7),
        GroupStep(1, COMMIT, offset=8, is_stale=True),
        GroupStep(0, LEAVE, place=5),
        GroupStep(0, COMMIT, offset=9),
    ]
    talk = play(broker, steps)

    assert (State.STABLE, 3, 7) == (talk.state, talk.generation, talk.committed)
    assert [1] == [member.number for member in talk.joined]


@pytest.mark.parametrize("is_stale", [False, True])
@pytest.mark.parametrize(
    "before",
    [
        [],
        [GroupStep(1, JOIN)],
        [GroupStep(0, JOIN)],
        [GroupStep(0, JOIN), GroupStep(0, SYNC)],
        [GroupStep(0, JOIN), GroupStep(1, JOIN)],
        [GroupStep(0, JOIN), GroupStep(0, SYNC), GroupStep(0, LEAVE)],
    ],
)
@pytest.mark.parametrize("action", GroupAction)
def test_every_version_of_a_request_agrees_with_the_model(
    broker: RunningBroker, action: GroupAction, before: list[GroupStep], is_stale: bool
) -> None:
    for place in range(10):
        play(broker, [*before, GroupStep(0, action, is_stale=is_stale, place=place)])


@pytest.mark.parametrize("action", GroupAction)
def test_wrong_answer_to_a_request_is_found(broker: RunningBroker, action: GroupAction) -> None:
    apis = {
        JOIN: "JoinGroup",
        SYNC: "SyncGroup",
        HEARTBEAT: "Heartbeat",
        COMMIT: "OffsetCommit",
        LEAVE: "LeaveGroup",
    }
    broker.faults.add(Error("NOT_COORDINATOR", api=apis[action]))

    with pytest.raises(AssertionError, match=f"{action.value} of member 0: NOT_COORDINATOR instead of"):
        play(broker, [GroupStep(0, JOIN), GroupStep(0, SYNC), GroupStep(0, action)])
