from __future__ import annotations

from typing import Any

import pytest

from korvet.broker.fetch_sessions import EVICTION_S, LARGEST, FetchSession, FetchSessions
from korvet.protocol.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

VERSION = 12


def request(
    *partitions: int, forgotten: tuple[int, ...] = (), session: tuple[int, int] = (0, 0)
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchTopic(
                topic="t",
                partitions=[
                    FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1)
                    for each in partitions
                ],
            )
        ],
        forgotten_topics_data=[ForgottenTopic(topic="t", partitions=list(forgotten))],
    )


def begin(sessions: FetchSessions, *partitions: int, now: float = 0.0, **options: Any) -> FetchSession | None:
    return sessions.create(request(*partitions), VERSION, now, **{"is_privileged": False, **options})


def go_on(
    sessions: FetchSessions, session: FetchSession, *partitions: int, **options: Any
) -> FetchSession | None:
    asked = request(*partitions, session=(session.session_id, session.epoch), **options)
    return sessions.of(asked, VERSION, 0.0)


def new(sessions: FetchSessions, *partitions: int, now: float = 0.0, **options: Any) -> FetchSession:
    session = begin(sessions, *partitions, now=now, **options)
    assert session is not None
    return session


def is_there(sessions: FetchSessions, session: FetchSession) -> bool:
    try:
        return sessions.of(request(session=(session.session_id, session.epoch)), VERSION, 0.0) is session
    except FetchSessionIdNotFound:
        return False


def test_session_has_the_partitions_that_requests_have_added_and_not_forgotten() -> None:
    sessions = FetchSessions(10)
    session = new(sessions, 0, 1, 2)

    assert session is go_on(sessions, session, 1, 3, forgotten=(0, 7))

    assert [("t", 1), ("t", 2), ("t", 3)] == list(session.partitions)
    assert 3 == sessions.partition_count


def test_epochs_rise_and_begin_again_with_one() -> None:
    sessions = FetchSessions(10)
    session = new(sessions, 0)

    go_on(sessions, session)
    assert 2 == session.epoch
    session.epoch = LARGEST
    go_on(sessions, session)
    assert 1 == session.epoch


def test_wrong_ids_epochs_and_versions_are_refused() -> None:
    sessions = FetchSessions(10)
    session = new(sessions, 0)

    with pytest.raises(FetchSessionIdNotFound):
        sessions.of(request(session=(session.session_id ^ 1, 1)), VERSION, 0.0)
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.of(request(session=(session.session_id, 2)), VERSION, 0.0)
    with pytest.raises(FetchSessionTopicIdError):
        sessions.of(request(session=(session.session_id, 1)), 13, 0.0)
    assert is_there(sessions, session)


@pytest.mark.parametrize("epoch", [0, -1])
def test_full_request_closes_its_session(epoch: int) -> None:
    sessions = FetchSessions(10)
    session = new(sessions, 0)

    assert sessions.of(request(0, session=(session.session_id, epoch)), VERSION, 0.0) is None

    assert not is_there(sessions, session)
    assert (0, 0) == (len(sessions), sessions.partition_count)


def test_session_that_forgets_its_last_partition_is_closed() -> None:
    sessions = FetchSessions(10)
    session = new(sessions, 0)

    assert go_on(sessions, session, forgotten=(0,)) is None

    assert 0 == len(sessions)


def test_no_slots_are_no_sessions() -> None:
    assert begin(FetchSessions(0), 0) is None


def test_young_sessions_are_not_evicted_for_another_consumer() -> None:
    sessions = FetchSessions(1)
    session = new(sessions, 0)

    assert begin(sessions, 0, 1, 2, now=EVICTION_S) is None
    assert is_there(sessions, session)


def test_session_that_was_not_used_for_long_is_evicted() -> None:
    sessions = FetchSessions(2)
    stale, used = new(sessions, 0, 1, 2), new(sessions, 0)
    sessions.of(request(session=(used.session_id, 1)), VERSION, 100.0)

    new(sessions, 0, now=EVICTION_S + 1)

    assert not is_there(sessions, stale)
    assert is_there(sessions, used)
    assert 1 == sessions.evicted


def test_old_session_in_use_is_evicted_for_a_larger_one_only() -> None:
    sessions = FetchSessions(2)
    small, large = new(sessions, 0, 1), new(sessions, 0, 1, 2, 3)
    for session in (small, large):
        sessions.of(request(session=(session.session_id, 1)), VERSION, EVICTION_S)
    now = EVICTION_S + 1

    assert begin(sessions, 0, now=now) is None
    new(sessions, 0, 1, 2, now=now)

    assert not is_there(sessions, small)
    assert is_there(sessions, large)


def test_session_of_a_replica_takes_the_place_of_a_young_one_of_a_consumer() -> None:
    sessions = FetchSessions(1)
    consumer = new(sessions, 0, 1, 2)

    replica = new(sessions, 0, is_privileged=True)

    assert not is_there(sessions, consumer)
    assert begin(sessions, 0, 1, now=EVICTION_S / 2) is None
    assert begin(sessions, 0, is_privileged=True) is None
    assert is_there(sessions, replica)


def test_partitions_of_all_sessions_and_of_one_are_limited() -> None:
    sessions = FetchSessions(10, partitions_at_most=5, partitions_of_one=3)
    session = new(sessions, 0, 1)

    assert begin(sessions, 0, 1, 2, 3) is None
    new(sessions, 0, 1, 2)
    assert begin(sessions, 0) is None
    with pytest.raises(FetchSessionIdNotFound):
        go_on(sessions, session, 2)
    assert 3 == sessions.partition_count
