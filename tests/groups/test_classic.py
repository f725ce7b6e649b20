from __future__ import annotations

import logging
from time import monotonic

import pytest

from korvet.groups.classic import ClassicGroup
from korvet.groups.members import GroupLimits, Join, Joined, Leave, State, subscribed_topics
from korvet.protocol.errors import ErrorCode
from tests.groups.conversation import BOTH, RANGE, Conversation, subscription

STICKY = (("sticky", b"sticky"),)


def settled(*names: str, static: bool = False, **limits: int) -> Conversation:
    """A Stable group in generation 1."""
    talk = Conversation(GroupLimits(**limits))
    talk.settle(*names, static=static)
    assert (State.STABLE, 1) == (talk.group.state, talk.group.generation_id)
    talk.group.is_unsaved = False
    return talk


# --- The first generation --------------------------------------------------------------------------------


def test_log_lines_contain_the_group_and_its_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="korvet.groups.classic")
    talk = Conversation()
    talk.join("a")
    talk.wait(3000)
    talk.sync("a", a="A")

    assert "group 'g' (Stable, generation 1, 1 members) has its assignments" == caplog.messages[-1]
    assert not [line for line in caplog.messages if "<" in line]


def test_first_generation_from_join_to_assignment() -> None:
    talk = Conversation()

    assert [] == talk.join("a")
    assert [] == talk.join("b")
    assert "<ClassicGroup 'g' PreparingRebalance generation=0 members=2>" == repr(talk.group)
    assert [] == talk.wait(3000)
    assert ["a leads 1: a, b", "b follows a in 1"] == talk.wait(3000)
    assert "<ClassicGroup 'g' CompletingRebalance generation=1 members=2>" == repr(talk.group)
    assert [] == talk.sync("b")
    assert ["a gets A", "b gets B"] == talk.sync("a", a="A", b="B")
    assert "<ClassicGroup 'g' Stable generation=1 members=2>" == repr(talk.group)
    assert ["ok", "ok"] == [talk.heartbeat("a"), talk.heartbeat("b")]


def test_empty_group_waits_the_initial_rebalance_delay_for_a_single_member() -> None:
    talk = Conversation()

    assert [] == talk.join("a")
    assert [] == talk.wait(2999)
    assert ["a leads 1: a"] == talk.wait(1)


def test_initial_rebalance_delay_is_extended_up_to_the_rebalance_timeout() -> None:
    talk = Conversation()

    assert [] == talk.join("a", rebalance_ms=7000)
    for name in "bc":
        assert [] == talk.wait(2000)
        assert [] == talk.join(name, rebalance_ms=7000)
    assert [] == talk.wait(2900)
    assert ["a leads 1: a, b, c", "b follows a in 1", "c follows a in 1"] == talk.wait(100)


def test_first_member_is_answered_immediately_without_a_delay() -> None:
    talk = Conversation(GroupLimits(initial_rebalance_delay_ms=0))

    assert ["a leads 1: a"] == talk.join("a")


def test_new_member_is_refused_once_with_member_id_required() -> None:
    talk = Conversation(GroupLimits(initial_rebalance_delay_ms=0))

    assert ["a: MEMBER_ID_REQUIRED"] == talk.join("a", can_be_sent_away=True)
    assert State.EMPTY == talk.group.state
    assert ["a leads 1: a"] == talk.join("a", can_be_sent_away=True)


def test_rebalance_waits_for_a_pending_member_up_to_its_session_timeout() -> None:
    talk = settled("a")
    talk.join("b", can_be_sent_away=True, session_ms=6000)

    assert [] == talk.join("a")
    assert [] == talk.wait(5999)
    assert ["a leads 2: a"] == talk.wait(1)
    assert ["b: UNKNOWN_MEMBER_ID"] == talk.join("b")


def test_pending_member_may_leave() -> None:
    talk = settled("a")
    talk.join("b", can_be_sent_away=True)

    assert [] == talk.join("a")
    assert ["a leads 2: a"] == talk.leave("b")


def test_unknown_member_id_is_refused() -> None:
    talk = settled("a")

    assert ["x: UNKNOWN_MEMBER_ID"] == talk.join("x", member_id="made-up")
    assert ["x: UNKNOWN_MEMBER_ID"] == talk.sync("x", member_id="made-up")
    assert "UNKNOWN_MEMBER_ID" == talk.heartbeat("made-up")
    assert "UNKNOWN_MEMBER_ID" == talk.commit(None, member_id="made-up")
    assert ["UNKNOWN_MEMBER_ID"] == talk.leave_as(Leave("made-up"))


# --- Protocols -------------------------------------------------------------------------------------------


def test_protocol_preferred_by_most_members_is_selected() -> None:
    talk = Conversation()
    talk.join("a", protocols=(("odd", b"1"), ("range", b"2"), ("sticky", b"3")))
    talk.join("b", protocols=(("sticky", b"4"), ("range", b"5")))
    talk.join("c", protocols=(("sticky", b"6"), ("range", b"7")))
    talk.wait(6000)

    assert "sticky" == talk.group.protocol_name


def test_leader_gets_every_members_metadata_of_the_selected_protocol() -> None:
    talk = Conversation(GroupLimits(initial_rebalance_delay_ms=10))
    talk.join("a", protocols=BOTH)
    talk.join("b", protocols=(("sticky", b"b's"), ("other", b"")))
    talk.group.answers.clear()
    talk.group.tick(10)
    talk.group.tick(20)
    (_, answer), _ = talk.group.answers

    assert [b"sticky", b"b's"] == [member.metadata for member in answer.members]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "protocol_type, protocols", [("connect", RANGE), ("consumer", STICKY), ("consumer", ()), ("", RANGE)]
)
def test_member_without_a_common_protocol_is_refused(
    protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    talk = settled("a")

    assert ["b: INCONSISTENT_GROUP_PROTOCOL"] == talk.join(
        "b", protocol_type=protocol_type, protocols=protocols
    )


@pytest.mark.parametrize("protocol_type, protocols", [("", RANGE), ("consumer", ())])
def test_first_member_requires_a_protocol(
    protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    talk = Conversation()

    assert ["a: INCONSISTENT_GROUP_PROTOCOL"] == talk.join(
        "a", protocol_type=protocol_type, protocols=protocols
    )


def test_empty_group_accepts_another_protocol_type() -> None:
    talk = Conversation(GroupLimits(initial_rebalance_delay_ms=0))
    talk.join("worker", protocol_type="connect")

    assert ("connect", None) == (talk.group.protocol_type, talk.group.subscribed_topics)
    talk.leave("worker")
    assert ["a leads 3: a"] == talk.join("a")
    assert "consumer" == talk.group.protocol_type


@pytest.mark.parametrize("protocol", [("connect", "range"), ("consumer", "sticky")])
def test_sync_for_another_protocol_is_refused(protocol: tuple[str, str]) -> None:
    talk = settled("a")

    assert ["a: INCONSISTENT_GROUP_PROTOCOL"] == talk.sync("a", protocol=protocol)
    assert ["a gets A"] == talk.sync("a", protocol=("consumer", "range"))


# --- Rebalances ------------------------------------------------------------------------------------------


def test_new_member_makes_existing_members_rejoin() -> None:
    talk = settled("a", "b")

    assert [] == talk.join("c")
    assert ["REBALANCE_IN_PROGRESS"] * 2 == [talk.heartbeat("a"), talk.heartbeat("b")]
    assert ["a: REBALANCE_IN_PROGRESS"] == talk.sync("a")
    assert "ok" == talk.commit("a")
    assert [] == talk.join("b")
    assert ["a leads 2: a, b, c", "b follows a in 2", "c follows a in 2"] == talk.join("a")
    assert "REBALANCE_IN_PROGRESS" == talk.commit("a")
    assert "ILLEGAL_GENERATION" == talk.heartbeat("a", generation=1)
    assert ["a: ILLEGAL_GENERATION"] == talk.sync("a", generation=1)
    assert "ILLEGAL_GENERATION" == talk.commit("a", generation=1)


def test_member_that_does_not_rejoin_within_the_rebalance_timeout_is_removed() -> None:
    talk = settled("a", "b")
    talk.join("c", rebalance_ms=60_000)
    talk.join("b")

    for _ in range(6):
        talk.heartbeat("a")
        talk.wait(9_000)
    assert ["b leads 2: b, c", "c follows b in 2"] == talk.wait(6_000)
    assert "UNKNOWN_MEMBER_ID" == talk.heartbeat("a")


def test_member_without_heartbeats_is_removed_after_its_session_timeout() -> None:
    talk = settled("a", "b")

    assert [] == talk.wait(9_000)
    assert "ok" == talk.heartbeat("a")
    assert [] == talk.wait(1_000)
    assert "REBALANCE_IN_PROGRESS" == talk.heartbeat("a")
    assert ["a leads 2: a"] == talk.join("a")


def test_commit_extends_the_session() -> None:
    talk = settled("a")
    talk.wait(9_000)

    assert "ok" == talk.commit("a")
    talk.wait(9_000)
    assert "ok" == talk.heartbeat("a")


def test_waiting_members_need_no_heartbeats() -> None:
    talk = settled("a", "b")

    assert [] == talk.join("a", rebalance_ms=300_000)
    for _ in range(5):
        talk.wait(9_000)
        talk.heartbeat("b")
    assert ["a leads 2: a, b", "b follows a in 2"] == talk.join("b")
    assert [] == talk.sync("b")
    assert [] == talk.wait(9_999)
    assert ["a gets A", "b gets B"] == talk.sync("a", a="A", b="B")


def test_new_member_waits_at_most_five_minutes() -> None:
    talk = settled("a")
    talk.join("b", rebalance_ms=600_000)
    responses = []
    for _ in range(59):
        talk.heartbeat("a")
        responses += talk.wait(5_000)

    assert [] == responses
    talk.heartbeat("a")
    assert ["b: UNKNOWN_MEMBER_ID"] == talk.wait(5_000)


def test_unchanged_follower_that_rejoins_gets_the_current_generation() -> None:
    talk = settled("a", "b")

    assert ["b follows a in 1"] == talk.join("b")
    assert ["b gets B"] == talk.sync("b")
    assert State.STABLE == talk.group.state


def test_leader_that_rejoins_causes_a_rebalance() -> None:
    talk = settled("a", "b")

    assert [] == talk.join("a")
    assert ["a leads 2: a, b", "b follows a in 2"] == talk.join("b")


def test_follower_with_new_metadata_causes_a_rebalance() -> None:
    talk = settled("a", "b")

    assert [] == talk.join("b", protocols=(("range", b"other topics"),))
    assert State.PREPARING_REBALANCE == talk.group.state


def test_lost_join_response_is_repeated() -> None:
    talk = Conversation(GroupLimits(initial_rebalance_delay_ms=10))
    talk.join("a")
    talk.join("b")
    talk.wait(20)

    assert ["a leads 1: a, b"] == talk.join("a")
    assert ["b follows a in 1"] == talk.join("b")


def test_new_metadata_before_the_assignment_causes_a_rebalance() -> None:
    talk = settled("a", "b")
    talk.join("a")
    talk.join("b")

    assert [] == talk.sync("b")
    assert ["b: REBALANCE_IN_PROGRESS"] == talk.join("a", protocols=(("range", b"other"),))
    assert ["a leads 3: a, b", "b follows a in 3"] == talk.join("b")


def test_member_without_an_assignment_gets_an_empty_one() -> None:
    talk = settled("a", "b")
    talk.join("a")
    talk.join("b")
    talk.sync("b")

    assert ["a gets A", "b gets nothing"] == talk.sync("a", a="A")


def test_member_that_does_not_sync_within_the_rebalance_timeout_is_removed() -> None:
    talk = settled("a", "b")
    talk.join("a")
    talk.join("b")
    talk.sync("a", a="A", b="B")
    for _ in range(7):
        talk.heartbeat("a")
        talk.heartbeat("b")
        talk.wait(9_000)

    assert (State.PREPARING_REBALANCE, ["a"]) == (talk.group.state, talk.members)


def test_leader_that_never_syncs_is_removed_after_the_rebalance_timeout() -> None:
    talk = settled("a", "b", "c")
    talk.join("a")
    talk.join("b")
    talk.join("c")
    talk.sync("b")
    talk.sync("c")
    responses = []
    for _ in range(7):
        talk.heartbeat("a")
        responses += talk.wait(9_000)

    assert ["b: REBALANCE_IN_PROGRESS", "c: REBALANCE_IN_PROGRESS"] == responses
    assert ["b", "c"] == talk.members


def test_repeated_join_answers_the_previous_one() -> None:
    talk = settled("a", "b")
    talk.join("a")

    assert ["a: REBALANCE_IN_PROGRESS"] == talk.join("a")
    assert ["a leads 2: a, b", "b follows a in 2"] == talk.join("b")


def test_repeated_sync_answers_the_previous_one() -> None:
    talk = settled("a", "b")
    talk.join("a")
    talk.join("b")
    talk.sync("b")

    assert ["b: REBALANCE_IN_PROGRESS"] == talk.sync("b")


# --- Leaving ---------------------------------------------------------------------------------------------


def test_another_member_leads_when_the_leader_leaves() -> None:
    talk = settled("a", "b")

    assert [] == talk.leave("a")
    assert ["b leads 2: b"] == talk.join("b")


def test_group_is_empty_in_the_next_generation_after_its_last_member_left() -> None:
    talk = settled("a")

    assert [] == talk.leave("a")
    assert "<ClassicGroup 'g' Empty generation=2 members=0>" == repr(talk.group)
    assert talk.group.is_unsaved
    assert ["a: UNKNOWN_MEMBER_ID"] == talk.join("a")


def test_several_members_leave_with_individual_error_codes() -> None:
    talk = settled("a", "b", "c")
    outcome = talk.leave_as(Leave(talk.ids["a"], reason="bye"), Leave("made-up"), Leave(talk.ids["b"]))

    assert ["UNKNOWN_MEMBER_ID"] == outcome
    assert ["c leads 2: c"] == talk.join("c")


def test_member_that_leaves_while_waiting_is_answered() -> None:
    talk = settled("a", "b")
    talk.join("a")

    assert ["a: UNKNOWN_MEMBER_ID"] == talk.leave("a")
    assert ["b leads 2: b"] == talk.join("b")
    talk.join("c")
    talk.join("b")
    assert [] == talk.sync("c")
    assert ["c: UNKNOWN_MEMBER_ID"] == talk.leave("c")


def test_reasons_are_logged_without_line_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="korvet.groups")
    talk = settled("a")
    talk.leave_as(Leave(talk.ids["a"], reason="max.poll.interval.ms\nexceeded" + "!" * 1000))

    assert "client reason: 'max.poll.interval.ms\\nexceeded!!" in caplog.text
    assert "!" * 256 not in caplog.text


# --- Static members --------------------------------------------------------------------------------------


def test_fenced_static_member_is_logged_with_both_ids(caplog: pytest.LogCaptureFixture) -> None:
    talk = settled("a", "b", static=True)
    old = talk.ids["b"]
    talk.join("b", static=True, as_new=True)
    with caplog.at_level(logging.WARNING, "korvet.groups"):
        assert "FENCED_INSTANCE_ID" == talk.commit(None, member_id=old, instance="b")

    (line,) = [text for text in caplog.messages if "fenced" in text]
    assert line.endswith(f"fenced static member 'b' with id '{old}'; its id is '{talk.ids['b']}' now")


def test_static_member_that_forgot_its_id_joins_again() -> None:
    """librdkafka sends heartbeats and commits without a member id after a session without an answer."""
    talk = settled("a", "b", static=True)

    assert "UNKNOWN_MEMBER_ID" == talk.commit(None, member_id="", instance="b")
    assert "UNKNOWN_MEMBER_ID" == talk.heartbeat("", instance="b")


def test_restarted_static_member_gets_its_assignment_without_a_rebalance() -> None:
    talk = settled("a", "b", static=True)
    old = talk.ids["b"]

    assert ["b follows a in 1"] == talk.join("b", static=True, as_new=True)
    assert talk.group.is_unsaved
    assert ["b gets B"] == talk.sync("b", instance="b")
    assert "FENCED_INSTANCE_ID" == talk.heartbeat(old, instance="b")
    assert ["x: FENCED_INSTANCE_ID"] == talk.sync("x", member_id=old, instance="b")
    assert "FENCED_INSTANCE_ID" == talk.commit(None, member_id=old, instance="b")
    assert ["FENCED_INSTANCE_ID"] == talk.leave_as(Leave(old, "b"))
    assert ["a", "b"] == talk.members


def test_restarted_static_leader_skips_the_assignment() -> None:
    talk = settled("a", "b", static=True)

    assert ["a leads 1 and skips: a, b"] == talk.join("a", static=True, as_new=True)


def test_restarted_static_leader_that_cannot_skip_becomes_a_follower() -> None:
    talk = settled("a", "b", static=True)

    assert ["a follows a in 1"] == talk.join("a", static=True, as_new=True, can_skip_assignment=False)
    assert talk.group.leader == talk.ids["a"]


def test_static_member_that_changes_the_selected_protocol_causes_a_rebalance() -> None:
    talk = Conversation()
    talk.settle("a", static=True, protocols=BOTH)

    assert ["a leads 2: a"] == talk.join("a", static=True, as_new=True, protocols=BOTH[::-1])
    assert "sticky" == talk.group.protocol_name


def test_second_member_of_an_instance_fences_the_waiting_first_one() -> None:
    talk = settled("a", "b", static=True)

    assert [] == talk.join("a", static=True)
    assert ["a: FENCED_INSTANCE_ID"] == talk.join("a", static=True, as_new=True)
    assert ["a leads 2: a, b", "b follows a in 2"] == talk.join("b", static=True)
    assert [] == talk.sync("b", instance="b")
    assert ["b: FENCED_INSTANCE_ID"] == talk.join("b", static=True, as_new=True)
    assert ["a leads 3: a, b", "b follows a in 3"] == talk.join("a", static=True)


def test_absent_static_member_remains_until_its_session_ends() -> None:
    talk = settled("a", "b", static=True)
    talk.join("c")

    assert [] == talk.join("a", static=True, session_ms=120_000)
    responses = []
    for _ in range(6):
        talk.heartbeat("b")
        responses += talk.wait(9_000)
    talk.heartbeat("b")
    responses += talk.wait(6_000)
    assert ["a leads 2: a, b, c", "c follows a in 2"] == responses
    assert ["a", "b", "c"] == talk.members


def test_absent_static_leader_is_replaced_by_a_present_member() -> None:
    talk = settled("a", "b", static=True)
    talk.join("b", static=True, protocols=(("range", b"other topics"),))
    responses = []
    for _ in range(6):
        talk.heartbeat("a")
        responses += talk.wait(9_000)
    talk.heartbeat("a")
    responses += talk.wait(6_000)

    assert ["b leads 2: a, b"] == responses


def test_rebalance_waits_while_only_absent_static_members_remain() -> None:
    talk = settled("a", "b", static=True)
    talk.join("c", can_be_sent_away=True)
    talk.join("c")
    talk.leave("c")
    for _ in range(15):
        talk.heartbeat("a")
        talk.heartbeat("b")
        talk.wait(9_000)

    assert (State.PREPARING_REBALANCE, 1) == (talk.group.state, talk.group.generation_id)
    assert [] == talk.join("a", static=True)
    assert ["a leads 2: a, b", "b follows a in 2"] == talk.join("b", static=True)


def test_static_member_is_removed_by_its_instance_id() -> None:
    talk = settled("a", "b", static=True)

    assert [] == talk.leave_as(Leave(group_instance_id="a"))
    assert ["UNKNOWN_MEMBER_ID"] == talk.leave_as(Leave(group_instance_id="a"))
    assert ["b"] == talk.members


def test_unknown_instance_id_is_refused() -> None:
    talk = settled("a")

    assert "UNKNOWN_MEMBER_ID" == talk.heartbeat("a", instance="made-up")


# --- Too many --------------------------------------------------------------------------------------------


def test_full_group_refuses_new_members() -> None:
    talk = settled("a", "b", max_size=2)

    assert ["c: GROUP_MAX_SIZE_REACHED"] == talk.join("c")
    assert ["c: GROUP_MAX_SIZE_REACHED"] == talk.join("c", can_be_sent_away=True)
    assert [] == talk.join("a")
    assert ["a leads 2: a, b", "b follows a in 2"] == talk.join("b")


def test_pending_members_are_bounded() -> None:
    talk = Conversation(GroupLimits(max_size=2))
    responses = [talk.join(name, can_be_sent_away=True) for name in "abc"]

    assert [["a: MEMBER_ID_REQUIRED"], ["b: MEMBER_ID_REQUIRED"], ["c: GROUP_MAX_SIZE_REACHED"]] == responses
    talk.wait(10_000)
    assert ["c: MEMBER_ID_REQUIRED"] == talk.join("c", can_be_sent_away=True)


def test_last_members_are_refused_when_max_size_was_reduced() -> None:
    talk = settled("a", "b", "c")
    talk.group.limits = GroupLimits(max_size=2)
    talk.join("a")

    assert [] == talk.join("b")
    assert ["c: GROUP_MAX_SIZE_REACHED"] == talk.join("c")


# --- Commits ---------------------------------------------------------------------------------------------


def test_empty_group_accepts_commits_without_a_generation() -> None:
    talk = Conversation()

    assert "ok" == talk.commit(None, generation=-1)
    assert "ok" == talk.commit(None, generation=-1, member_id="somebody")
    assert "UNKNOWN_MEMBER_ID" == talk.commit(None, generation=0)


def test_group_with_members_accepts_commits_of_members_only() -> None:
    talk = settled("a")

    assert "UNKNOWN_MEMBER_ID" == talk.commit(None, generation=-1)
    assert "UNKNOWN_MEMBER_ID" == talk.commit(None, generation=1, member_id="")
    assert "ILLEGAL_GENERATION" == talk.commit("a", generation=-1)
    assert "ok" == talk.commit("a")


# --- Subscriptions ---------------------------------------------------------------------------------------


def test_consumer_group_parses_the_subscriptions_of_its_members() -> None:
    talk = Conversation()
    talk.join("a", protocols=(("range", subscription("orders", "größe")),))
    talk.join("b", protocols=(("range", subscription("orders", "flights")),))
    talk.wait(6_000)

    assert frozenset({"orders", "größe", "flights"}) == talk.group.subscribed_topics
    assert [True, False] == [talk.group.is_subscribed(topic) for topic in ("orders", "other")]


def test_unparsable_subscription_counts_as_subscribed_to_every_topic() -> None:
    talk = settled("a")

    assert talk.group.subscribed_topics is None
    assert talk.group.is_subscribed("orders")


def test_empty_consumer_group_has_no_subscriptions() -> None:
    talk = settled("a")
    talk.leave("a")

    assert frozenset() == talk.group.subscribed_topics


@pytest.mark.parametrize(
    "metadata",
    [b"", b"\0\1", b"\0\1\0\0\0\1", b"\0\1\0\0\0\1\0\5abc", b"\0\1\0\0\0\1\xff\xff", b"\0\1\0\0\0\1\0\1\xff"],
)
def test_malformed_subscriptions_raise_value_error(metadata: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  its words are the parser's
        subscribed_topics(metadata)


def test_oldest_pending_members_are_removed_beyond_a_bound() -> None:
    group = ClassicGroup("g", GroupLimits(max_newcomers=3))
    for _ in range(4):
        group.join(Join(protocols=RANGE), "knock", 0)
    ids = [answer.member_id for _, answer in group.answers if isinstance(answer, Joined)]
    group.answers.clear()
    for member_id in (ids[0], ids[3]):
        group.join(Join(member_id=member_id, protocols=RANGE), member_id, 1)
    group.tick(3001)
    responses = {ticket: answer.error_code for ticket, answer in group.answers}

    assert ErrorCode.UNKNOWN_MEMBER_ID == responses[ids[0]]
    assert list(group._pending) == ids[1:3]
    assert list(group.members) == ids[3:]


def test_many_members_expire_in_one_pass() -> None:
    count = 20_000
    group = ClassicGroup("g", GroupLimits(max_newcomers=count))
    for number in range(count):
        group.join(Join(protocols=RANGE, session_timeout_ms=10_000 + number % 7), "knock", 0)
    for _ in range(count):
        group.join(Join(protocols=RANGE, can_be_sent_away=False), "join", 0)
    began_s = monotonic()
    group.tick(1_000_000)
    group.tick(2_000_000)
    took_s = monotonic() - began_s

    assert (0, 0, State.EMPTY) == (len(group._pending), len(group.members), group.state)
    assert took_s < 20  # minutes if each expiry looks at all deadlines
