from __future__ import annotations

import pytest

from korvet.groups.consumer_members import ConsumerLimits
from korvet.protocol.steps import at_once
from tests.groups.consumer_conversation import ConsumerConversation


def settled(*names: str, partitions: int = 4) -> ConsumerConversation:
    """A Stable group of a topic t."""
    talk = ConsumerConversation.about(t=partitions)
    for name in names:
        talk.join(name)
        talk.settle(*talk.group.members)
    assert "Stable" == talk.state()
    return talk


# --- Joining and reconciling -----------------------------------------------------------------------------


def test_first_member_gets_all_partitions_in_its_first_answer() -> None:
    talk = ConsumerConversation.about(t=4)

    assert "Empty" == talk.state()
    assert "1: t0 t1 t2 t3" == talk.join("a")
    assert "Stable" == talk.state()
    assert "<ConsumerGroup 'g' Stable epoch=1 members=1>" == repr(talk.group)


def test_join_settles_in_three_heartbeats() -> None:
    talk = settled("a")

    assert "2:" == talk.join("b")
    assert "Reconciling" == talk.state()
    assert "1: t0 t1" == talk.beat("a")
    assert "2" == talk.beat("b")
    assert "2" == talk.beat("a", owned="t0 t1")
    assert "2: t2 t3" == talk.beat("b")
    assert "Stable" == talk.state()


def test_member_that_still_owns_a_revoked_partition_stays_at_its_epoch() -> None:
    talk = settled("a")
    talk.join("b")
    talk.beat("a")

    assert "1" == talk.beat("a", owned="t0 t1 t2")
    assert "1" == talk.beat("a")
    assert "2" == talk.beat("a", owned="t0")


def test_owned_partitions_that_were_never_assigned_are_accepted() -> None:
    talk = settled("a", "b")

    assert "2" == talk.beat("a", owned="t0 t1 t2 t3")


def test_new_target_does_not_interrupt_a_revocation() -> None:
    talk = settled("a")
    talk.join("b")
    talk.beat("a")
    talk.wait(50_000 - 10_000)
    talk.join("c")

    assert "1" == talk.beat("a", owned="t0 t1 t2 t3")
    talk.wait(20_000)
    assert "UNKNOWN_MEMBER_ID" == talk.beat("a", owned="t0 t1"), "the first timeout went on"


def test_partition_that_its_member_is_revoking_may_come_back() -> None:
    talk = settled("a")
    talk.join("b")
    talk.beat("a")
    talk.leave("b")

    assert "3: t0 t1 t2 t3" == talk.beat("a", owned="t0 t1")


def test_full_request_is_answered_with_the_assignment() -> None:
    talk = settled("a")

    assert "1" == talk.beat("a")
    assert "1: t0 t1 t2 t3" == talk.beat("a", owned="t0 t1 t2 t3", topics="t", is_full=True)


# --- Subscriptions and topics ----------------------------------------------------------------------------


def test_unsubscribed_topics_are_revoked_and_acknowledged_in_one_request() -> None:
    talk = ConsumerConversation.about(t=2, u=2)
    talk.join("a", "tu")

    assert "2: t0 t1" == talk.beat("a", owned="t0 t1", topics="t")


def test_unsubscribed_topics_are_revoked_before_the_next_target() -> None:
    limits = ConsumerLimits(assignment_interval_ms=15_000)
    talk = ConsumerConversation.about(limits=limits, t=2, u=2)
    talk.join("a", "tu")

    assert "1: t0 t1" == talk.beat("a", topics="t")
    assert "Assigning" == talk.state()
    assert "1" == talk.beat("a", owned="t0 t1")
    talk.wait(15_000)
    assert "2" == talk.beat("a")


def test_target_is_computed_once_per_interval() -> None:
    talk = ConsumerConversation.about(limits=ConsumerLimits(), t=4)
    talk.join("a")
    talk.wait(999)

    assert "1:" == talk.join("b")
    assert "1" == talk.beat("a")
    talk.wait(1)
    assert "1: t0 t1" == talk.beat("a")
    assert (2, 2) == (talk.group.epoch, talk.group.assignment_epoch)


def test_new_partitions_begin_an_epoch() -> None:
    talk = settled("a")
    talk.create("t", 5)

    assert "2: t0 t1 t2 t3 t4" == talk.beat("a")
    assert "2" == talk.beat("a")


def test_topics_of_other_groups_begin_no_epoch() -> None:
    talk = settled("a")
    talk.create("u", 5)

    assert "1" == talk.beat("a")


def test_deleted_topic_is_revoked() -> None:
    talk = ConsumerConversation.about(t=2, u=2)
    talk.join("a", "tu")
    talk.delete("u")

    assert "1: t0 t1" == talk.beat("a")
    assert "2" == talk.beat("a", owned="t0 t1")


def test_recreated_topic_is_another_topic() -> None:
    talk = settled("a", partitions=2)
    talk.delete("t")
    talk.create("t", 2)

    assert "1:" == talk.beat("a")
    assert "2: t0 t1" == talk.beat("a", owned="")


def test_expression_leads_to_the_resolved_topics() -> None:
    talk = ConsumerConversation.about(t=2, u=1, v=1)
    talk.group.resolve("[tu]", frozenset("tu"))

    assert "1: t0 t1 u0" == talk.join("a", "", expression="[tu]")
    talk.group.resolve("[tu]", frozenset("tuv"))
    assert "2: t0 t1 u0 v0" == talk.beat("a")
    assert "2: v0" == talk.beat("a", topics="v", expression="")
    assert {} == talk.group.resolved


def test_assignor_of_most_members_is_used() -> None:
    talk = ConsumerConversation.about(t=4, u=4)
    for name, assignor in zip("abc", ("range", "range", None), strict=True):
        talk.join(name, "tu", assignor=assignor)

    assert "range" == talk.group.assignor
    assert "t0 t1 u0 u1" == talk.target("a")
    assert "UNSUPPORTED_ASSIGNOR" == talk.join("d", assignor="sticky")


# --- Epochs ----------------------------------------------------------------------------------------------


def test_epochs_are_fenced_except_for_the_previous_one_with_a_subset() -> None:
    talk = settled("a", "b")

    assert "FENCED_MEMBER_EPOCH" == talk.beat("a", epoch=3)
    assert "FENCED_MEMBER_EPOCH" == talk.beat("a", epoch=1)
    assert "FENCED_MEMBER_EPOCH" == talk.beat("a", epoch=1, owned="t0 t1 t2")
    assert "2" == talk.beat("a", epoch=1, owned="t0 t1")


def test_rejoin_is_never_fenced() -> None:
    talk = settled("a", "b")

    assert "2: t0 t1" == talk.join("a")
    assert 2 == talk.group.epoch


@pytest.mark.parametrize("epoch", [1, -1])
def test_unknown_member_is_refused(epoch: int) -> None:
    talk = settled("a")

    assert "UNKNOWN_MEMBER_ID" == talk.beat("b", epoch=epoch)


def test_full_group_takes_no_new_member() -> None:
    talk = ConsumerConversation.about(limits=ConsumerLimits(max_size=1), t=4)
    talk.join("a")

    assert "GROUP_MAX_SIZE_REACHED" == talk.join("b")
    assert "1: t0 t1 t2 t3" == talk.join("a")


# --- Leaving and timeouts --------------------------------------------------------------------------------


def test_partitions_of_a_member_that_leaves_are_free() -> None:
    talk = settled("a", "b")

    assert "-1" == talk.leave("b")
    assert "3: t0 t1 t2 t3" == talk.beat("a")


def test_session_timeout_removes_a_member() -> None:
    talk = settled("a", "b")
    talk.wait(44_999)
    talk.beat("a")
    talk.wait(1)

    assert ["a"] == list(talk.group.members)
    assert 3 == talk.group.epoch


def test_rebalance_timeout_removes_a_member_that_does_not_revoke() -> None:
    talk = ConsumerConversation.about(t=4)
    talk.join("a", rebalance_ms=20_000)
    talk.join("b")
    talk.beat("a")
    talk.wait(10_000)
    talk.beat("a", owned="t0 t1 t2")
    talk.wait(9_999)

    assert {"a", "b"} == set(talk.group.members)
    talk.wait(1)
    assert {"b"} == set(talk.group.members)
    assert "3: t0 t1 t2 t3" == talk.beat("b")


def test_empty_group_keeps_its_epoch() -> None:
    talk = settled("a")
    talk.leave("a")

    assert "Empty" == talk.state()
    assert "3: t0 t1 t2 t3" == talk.join("b")


# --- Static members --------------------------------------------------------------------------------------


def test_static_member_keeps_its_partitions_while_it_is_away() -> None:
    talk = ConsumerConversation.about(t=4)
    talk.join("a", instance="i")
    talk.join("b", instance="j")
    talk.settle("a", "b")

    assert "-2" == talk.leave("a", instance="i", for_a_while=True)
    assert 2 == talk.group.epoch
    assert "Reconciling" == talk.state()
    assert "2" == talk.beat("b")
    assert "2: t0 t1" == talk.join("c", instance="i")
    assert ["c", "b"] == list(talk.group.members)
    assert "Stable" == talk.state()


def test_static_member_that_does_not_come_back_is_removed() -> None:
    talk = ConsumerConversation.about(t=4)
    talk.join("a", instance="i")
    talk.leave("a", instance="i", for_a_while=True)
    talk.wait(45_000)

    assert {} == talk.group.members


def test_instance_ids_are_fenced() -> None:
    talk = ConsumerConversation.about(t=4)
    talk.join("a", instance="i")

    assert "UNRELEASED_INSTANCE_ID" == talk.join("b", instance="i")
    assert "UNRELEASED_INSTANCE_ID" == talk.join("a", instance="i")
    assert "FENCED_INSTANCE_ID" == talk.beat("b", epoch=1, instance="i")
    assert "FENCED_INSTANCE_ID" == talk.leave("b", instance="i")
    assert "UNKNOWN_MEMBER_ID" == talk.beat("a", epoch=1, instance="j")


# --- Large groups ----------------------------------------------------------------------------------------


def test_target_of_a_large_group_is_computed_by_the_caller() -> None:
    talk = settled("a", partitions=20_000)

    assert "1:" == talk.join("b")
    assert talk.group.must_assign(talk.now_ms)
    assert talk.group.apply(at_once(talk.group.assigning()), talk.now_ms)
    assert (10_000, 10_000) == (len(talk.target("a").split()), len(talk.target("b").split()))


def test_target_for_members_that_have_changed_meanwhile_is_not_applied() -> None:
    talk = settled("a", partitions=20_000)
    talk.join("b")
    stale = at_once(talk.group.assigning())
    talk.join("c")

    assert not talk.group.apply(stale, talk.now_ms)
    assert (3, 1) == (talk.group.epoch, talk.group.assignment_epoch)
