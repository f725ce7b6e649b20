"""Which replica a failover of Sentinel may promote, and which replicas must have a write so that it survives."""

from __future__ import annotations

import pytest

from korvet.storage.redis.failover.promotion import Candidate, missing, replication_of, view_of

A, B, C = "127.0.0.1:1", "127.0.0.1:2", "[::1]:3"


def candidate(
    address: str, *, offset: int = 100, priority: int = 100, is_following: bool = True
) -> Candidate:
    return Candidate(address, priority, offset, is_following)


@pytest.mark.parametrize(
    "lagging",
    [
        pytest.param(candidate(B), id="follows"),
        pytest.param(candidate(B, offset=0), id="follows from afar"),
        pytest.param(candidate(B, is_following=False), id="is at the same offset"),
        pytest.param(candidate(B, offset=101, is_following=False), id="is at a larger offset"),
        pytest.param(candidate(B, offset=0, priority=99, is_following=False), id="is preferred"),
    ],
)
def test_replica_without_a_write_that_may_be_promoted_is_missing(lagging: Candidate) -> None:
    assert [lagging] == missing([candidate(A), lagging], {A})


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(candidate(B, offset=0, is_following=False), id="is a former primary"),
        pytest.param(candidate(B, offset=99, is_following=False), id="lost its primary earlier"),
        pytest.param(candidate(B, offset=200, priority=101, is_following=False), id="is not preferred"),
    ],
)
def test_replica_that_follows_no_primary_behind_one_with_the_write_is_not_missing(behind: Candidate) -> None:
    assert [] == missing([candidate(A), behind], {A})


def test_replica_behind_is_missing_if_none_with_the_write_can_be_promoted() -> None:
    behind = candidate(B, offset=0, is_following=False)

    assert [behind] == missing([behind], {A})


def test_replicas_with_the_write_are_not_missing() -> None:
    assert [] == missing([candidate(A), candidate(B, offset=0)], {A, B, C})


def replica(port: int, flags: str, *, priority: int = 100) -> dict[bytes, bytes]:
    return {
        b"ip": b"127.0.0.1",
        b"port": b"%d" % port,
        b"flags": flags.encode(),
        b"slave-priority": b"%d" % priority,
        b"slave-repl-offset": b"7",
        b"master-link-status": b"err",
    }


def test_view_leaves_out_replicas_that_are_down_or_never_promoted() -> None:
    master = {
        b"ip": b"::1",
        b"port": b"3",
        b"flags": b"master",
        b"num-other-sentinels": b"2",
        b"config-epoch": b"4",
        b"failover-timeout": b"1500",
    }
    replicas = [
        replica(1, "slave"),
        replica(2, "slave,disconnected"),
        replica(3, "s_down,slave,disconnected"),
        replica(4, "o_down,slave"),
        replica(5, "slave", priority=0),
    ]
    view = view_of(master, replicas, 5)
    down = view_of({**master, b"flags": b"s_down,master"}, replicas, 4)

    assert [f"127.0.0.1:{port}" for port in (1, 2)] == [each.address for each in view.candidates]
    assert candidate(A, offset=7, is_following=False) == view.candidates[0]
    assert [f"127.0.0.1:{port}" for port in range(1, 6)] == list(view.replicas)
    assert (C, 3, 1.5) == (view.primary, view.sentinels, view.failover_timeout_s)
    assert (True, True) == (view.is_in_office, view.has_voted)
    assert (False, False) == (down.is_in_office, down.has_voted)


def test_info_tells_which_replicas_have_an_offset() -> None:
    found = replication_of(
        {
            b"role": b"master",
            b"connected_slaves": b"3",
            b"slave0": b"ip=127.0.0.1,port=1,state=online,offset=100,lag=0",
            b"slave1": b"ip=127.0.0.1,port=2,state=online,offset=90,lag=9",
            b"slave2": b"ip=::1,port=3,state=wait_bgsave,offset=0,lag=0",
            b"master_repl_offset": b"100",
        }
    )

    assert (100, 1) == (found.offset, found.responsive)
    assert ({A}, {A, B}, set()) == (found.have(100), found.have(90), found.have(101))
