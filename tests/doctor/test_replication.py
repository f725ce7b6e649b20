"""The checks of replicas and Sentinels, on real ones in the states that they report."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Iterator

import pytest
import redis
import trio

from korvet.config import Config
from korvet.doctor.findings import Finding, Verdict
from korvet.doctor.redis import redis_findings, remedy_of
from korvet.storage.redis.client.errors import AuthenticationError, NoPermissionError, ResponseError
from tests.doctor.test_redis import documented_rights, url_of
from tests.redis_clusters import RedisCluster
from tests.sentinels import NAME, SentinelSet, eventually
from tests.servers import VALKEY, RedisServer, start_replica, start_server

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("doctor")]


def findings(url: str, **settings: object) -> list[Finding]:
    async def main() -> list[Finding]:
        return [found async for found in redis_findings(Config(storage=url, **settings))]

    return trio.run(main)


def about(check: str, url: str, **settings: object) -> list[tuple[Verdict, str]]:
    """Return verdicts and reasons of one check, without those that are ok."""
    return [
        (each.verdict, each.reason)
        for each in findings(url, **settings)
        if each.check == check and each.verdict is not Verdict.OK
    ]


@pytest.fixture
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary with an append-only file, and a replica of it."""
    primary = start_server(VALKEY, tcp=True, durable=True)
    replica = start_replica(primary, durable=True)
    yield primary, replica
    replica.remove()
    primary.remove()


def test_healthy_pair_has_no_finding(pair: tuple[RedisServer, RedisServer]) -> None:
    assert [] == about("replicas", pair[0].tcp_url, min_insync_replicas=2)


def test_replica_that_hangs_is_an_error_if_it_has_to_confirm(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, replica = pair
    replica.pause()
    try:
        ((verdict, reason), _) = about("replicas", primary.tcp_url, min_insync_replicas=2)
        ((weaker, _), _) = about("replicas", primary.tcp_url)
    finally:
        replica.resume()

    assert Verdict.ERROR == verdict
    assert reason.startswith("0 of 1 have confirmed a write within 1000 ms, min.insync.replicas=2")
    assert Verdict.WARNING == weaker


def test_replica_with_another_policy_or_without_a_file_is_found(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    primary, replica = pair
    with replica.client() as client:
        client.config_set("maxmemory", 1 << 30)
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
    found = dict(about("replicas", primary.tcp_url))

    assert {Verdict.ERROR, Verdict.WARNING} == set(found)
    assert f"the replica 127.0.0.1:{replica.port}: it may evict any key" in found[Verdict.ERROR]
    assert "has no append-only file" in found[Verdict.WARNING]


def test_user_that_replicas_do_not_have_is_an_error(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, replica = pair
    with primary.client() as client:
        url = url_of(primary, client, [*documented_rights(), "+wait"])
    ((verdict, reason),) = about("replicas", url)

    assert Verdict.ERROR == verdict
    assert f"the user cannot log in at the replica 127.0.0.1:{replica.port}" in reason


def test_sentinels_that_cannot_fail_over_are_an_error() -> None:
    with SentinelSet(VALKEY) as servers:
        assert [] == about("sentinels", servers.url)
        for server in servers.servers[1:]:
            with server.client() as client:
                client.config_set("replica-priority", 0)
        for sentinel in servers.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL", "SET", NAME, "down-after-milliseconds", 500)
        priorities = about("replicas", servers.url, min_insync_replicas=2)
        impatient = about("sentinels", servers.url)
        for sentinel in servers.sentinels[1:]:
            os.kill(sentinel.process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
        with servers.sentinels[0].client() as client:
            eventually(lambda: not has_quorum(client), "the loss of the quorum")
        lost = about("sentinels", servers.url)

    assert [(Verdict.ERROR, "no replica may be promoted: each has the priority 0")] == priorities
    assert [Verdict.WARNING] == [verdict for verdict, _ in impatient]
    assert impatient[0][1].startswith("down-after-milliseconds is 500")
    assert any(
        verdict is Verdict.ERROR and "they cannot fail over: NOQUORUM" in reason for verdict, reason in lost
    )


def has_quorum(client: redis.Redis) -> bool:
    try:
        client.execute_command("SENTINEL", "CKQUORUM", NAME)
    except redis.ResponseError:
        return False
    return True


def test_cluster_whose_failovers_may_lose_records_is_a_warning() -> None:
    with RedisCluster(VALKEY) as cluster:
        one = about("replicas", cluster.url)
        two = about("replicas", cluster.url, min_insync_replicas=2)

    assert one
    assert {Verdict.WARNING} == {verdict for verdict, _ in one}
    assert all(
        "a failover may promote a replica without the last acknowledged" in reason for _, reason in one
    )
    assert [] == two


def test_remedy_for_a_slot_without_a_primary_is_not_a_right() -> None:
    with RedisCluster(VALKEY, replicas_each=0) as cluster:
        gone = cluster.servers[-1]
        with cluster.servers[0].client() as client:
            gone.kill()
            eventually(
                lambda: "ok" not in str(client.cluster("info").get("cluster_state")),
                "the failure of the cluster",
            )
        found = [each for each in findings(cluster.url) if each.verdict is Verdict.ERROR]

    assert found
    assert not [each for each in found if "ACL SETUSER" in each.remedy]


def test_remedies_follow_the_refusal() -> None:
    role = NoPermissionError("NOPERM User korvet has no permissions to run the 'role' command")
    certificate = ssl.SSLCertVerificationError("certificate verify failed: Hostname mismatch")

    assert remedy_of(role).startswith("ACL SETUSER … +role, on replicas as well")
    assert remedy_of(certificate).startswith("?ssl_ca_certs=FILE in --storage")
    assert remedy_of(ResponseError("CLUSTERDOWN Hash slot not served")).startswith(
        "redis-cli --cluster check"
    )
    assert "correct user and password in --storage" == remedy_of(AuthenticationError("WRONGPASS"))
    assert "start it, or correct the address in --storage" == remedy_of(
        ConnectionRefusedError(111, "refused")
    )
