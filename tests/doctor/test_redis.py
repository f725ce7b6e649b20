"""The checks of Redis, on servers in the states that they report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis
import trio
from confluent_kafka import Producer

from korvet.cluster.registration import Registration, written
from korvet.config import Config
from korvet.doctor import leftovers, transactions
from korvet.doctor.findings import Finding, Verdict
from korvet.doctor.redis import REQUIRED, redis_findings
from korvet.doctor.replication import replicas
from korvet.testing import running_broker
from tests.sentinels import Report, scripted_sentinel, sentinel_url
from tests.servers import VALKEY, RedisServer, free_port, start_server

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("doctor")]
DOCUMENT = Path(__file__).parents[2] / "docs" / "storage.md"
RIGHTS = re.search(
    r"^    ACL SETUSER korvet on >PASSWORD (.*?)\n\n", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE
)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = start_server(VALKEY, tcp=True)
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client
        client.flushall()
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
        client.acl_deluser("korvet")


def found(url: str, **settings: object) -> dict[str, Finding]:
    """Return the worst finding of each check."""

    async def main() -> list[Finding]:
        return [finding async for finding in redis_findings(Config(storage=url, **settings))]

    findings = sorted(trio.run(main), key=lambda finding: finding.verdict)
    return {finding.check: finding for finding in findings}


def documented_rights() -> list[str]:
    assert RIGHTS is not None
    return RIGHTS[1].split()


def url_of(server: RedisServer, client: redis.Redis, rights: list[str]) -> str:
    """Give the user korvet these rights only, and return the URL with it."""
    client.acl_deluser("korvet")
    client.execute_command("ACL", "SETUSER", "korvet", "on", ">pw", *rights)
    return f"redis://korvet:pw@127.0.0.1:{server.port}"


def test_server_without_persistence_is_the_only_warning(server: RedisServer, client: redis.Redis) -> None:
    findings = found(server.tcp_url)

    assert ["persistence"] == [name for name, each in findings.items() if each.verdict is not Verdict.OK]
    assert "Redis keeps nothing on disk" in findings["persistence"].reason
    assert "there is no data of korvet yet" == findings["keyspace"].reason
    assert [] == client.keys()


def test_rights_that_are_tried_are_those_that_the_document_names() -> None:
    commands = {right.removeprefix("+") for right in documented_rights() if right.startswith("+")}

    assert commands == {*REQUIRED, "set"}


def test_documented_rights_suffice(server: RedisServer, client: redis.Redis) -> None:
    findings = found(url_of(server, client, documented_rights()))

    assert Verdict.WARNING == findings["rights"].verdict  # for those that are only useful
    assert Verdict.OK == findings["clock"].verdict


@pytest.mark.parametrize("right", [f"+{right}" for right in (*REQUIRED, "set")])
def test_missing_right_is_found(server: RedisServer, client: redis.Redis, right: str) -> None:
    rights = [each for each in documented_rights() if each != right]

    finding = found(url_of(server, client, rights))["rights"]

    assert Verdict.ERROR == finding.verdict
    assert right in finding.reason or f"may not {right[1:].upper()} " in finding.reason


def test_missing_right_to_the_keys_is_found(server: RedisServer, client: redis.Redis) -> None:
    rights = [each for each in documented_rights() if each != "~{korvet:*"]

    assert "lacks +get" in found(url_of(server, client, rights))["rights"].reason


def test_missing_wait_is_an_error_only_if_replicas_are_required(
    server: RedisServer, client: redis.Redis
) -> None:
    url = url_of(server, client, documented_rights())

    assert Verdict.WARNING == found(url)["rights"].verdict
    assert Verdict.ERROR == found(url, min_insync_replicas=2)["rights"].verdict


def test_eviction_is_an_error_unless_it_is_allowed(server: RedisServer, client: redis.Redis) -> None:
    client.config_set("maxmemory", 100_000_000)
    client.config_set("maxmemory-policy", "allkeys-lru")

    assert Verdict.ERROR == found(server.tcp_url)["memory"].verdict
    assert Verdict.WARNING == found(server.tcp_url, redis_allow_eviction=True)["memory"].verdict


def test_nearly_full_memory_is_a_warning(server: RedisServer, client: redis.Redis) -> None:
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]))

    finding = found(server.tcp_url)["memory"]

    assert Verdict.WARNING == finding.verdict
    assert "when it is full, produces fail" in finding.reason


def test_too_few_replicas_are_an_error(server: RedisServer) -> None:
    finding = found(server.tcp_url, min_insync_replicas=3)["replicas"]

    assert (Verdict.ERROR, "0 connected, min.insync.replicas=3") == (finding.verdict, finding.reason)


def test_unreplicated_acknowledgements_are_a_warning_if_sentinels_may_promote_a_replica() -> None:
    info = {b"role": b"master", b"connected_slaves": b"2"}

    few = replicas(info, 1, fails_over=True)
    assert (Verdict.WARNING, True) == (few.verdict, few.remedy.startswith("min.insync.replicas=2;"))
    assert Verdict.OK == replicas(info, 2, fails_over=True).verdict
    assert Verdict.OK == replicas(info, 1).verdict
    assert Verdict.OK == replicas({**info, b"connected_slaves": b"0"}, 1, fails_over=True).verdict


@pytest.mark.parametrize(
    "known, verdict, reason",
    [(2, Verdict.OK, "2 of 2 answer"), (3, Verdict.WARNING, "2 of 3 answer")],
)
def test_sentinels_that_do_not_answer_or_are_not_named_are_a_warning(
    server: RedisServer, known: int, verdict: Verdict, reason: str
) -> None:
    async def main() -> Finding:
        async with AsyncExitStack() as stack:
            ports = [
                await stack.enter_async_context(
                    scripted_sentinel(lambda: server.port, Report(sentinels=known))
                )
                for _ in range(2)
            ]
            findings = [each async for each in redis_findings(Config(storage=sentinel_url(*ports)))]
        return next(each for each in findings if each.check == "sentinels")

    finding = trio.run(main)

    assert (verdict, reason) == (finding.verdict, finding.reason)


def test_data_of_a_newer_korvet_is_an_error(server: RedisServer, client: redis.Redis) -> None:
    client.set("korvet:$format", "2")

    assert Verdict.ERROR == found(server.tcp_url)["keyspace"].verdict


def test_server_that_does_not_answer_is_an_error() -> None:
    finding = found(f"redis://127.0.0.1:{free_port()}")["redis"]

    assert Verdict.ERROR == finding.verdict
    assert finding.reason.endswith("Connection refused")


def test_wrong_password_is_an_error_without_the_password(server: RedisServer) -> None:
    finding = found(f"redis://alice:c4n4ry@127.0.0.1:{server.port}")["redis"]

    assert Verdict.ERROR == finding.verdict
    assert "invalid username-password pair" in finding.reason
    assert "c4n4ry" not in finding.reason


# --- Leftovers -----------------------------------------------------------------------------------------------


def reasons(server: RedisServer, check: str) -> list[tuple[Verdict, str]]:
    async def main() -> list[tuple[Verdict, str]]:
        findings = [finding async for finding in redis_findings(Config(storage=server.tcp_url))]
        return [(each.verdict, each.reason) for each in findings if each.check == check]

    return trio.run(main)


def fill(server: RedisServer) -> None:
    """Produce to two topics, one of them compacted, and end the broker."""
    with running_broker(server.tcp_url) as broker:
        broker.create_topic("orders")
        broker.create_topic("prices", settings={"cleanup.policy": "compact"})
        broker.produce("orders", "a", "b")


def test_healthy_keyspace_has_no_leftovers(server: RedisServer, client: redis.Redis) -> None:
    fill(server)

    assert [(Verdict.OK, "there are none")] == reasons(server, "leftovers")
    assert [(Verdict.OK, "registered, and accepting connections: 0")] == reasons(server, "brokers")


def test_keys_of_partitions_that_do_not_exist_are_a_warning(server: RedisServer, client: redis.Redis) -> None:
    fill(server)
    client.xadd("korvet:gone:0", {"value": "x"})
    client.hset("{korvet:orders:7}:$state", "length", 1)
    client.set("{korvet:gone:0}:$compacted.index", "")
    client.set("other:korvet:orders:9", "")  # of another program

    ((verdict, reason),) = reasons(server, "leftovers")

    assert Verdict.WARNING == verdict
    assert reason.startswith("keys of partitions that are not in the catalogue: 3 (")
    assert "'korvet:gone:0'" in reason


def test_partition_whose_stream_was_removed_is_a_warning(server: RedisServer, client: redis.Redis) -> None:
    fill(server)
    client.delete("korvet:orders:0")

    expected = "partitions with records whose stream does not exist: 1 ('korvet:orders:0')"
    assert [(Verdict.WARNING, expected)] == reasons(server, "leftovers")


def test_remains_of_a_compaction_are_a_warning_if_the_topic_is_not_compacted(
    server: RedisServer, client: redis.Redis
) -> None:
    fill(server)
    client.set("{korvet:prices:0}:$compacted", "")
    assert [(Verdict.OK, "there are none")] == reasons(server, "leftovers")
    client.set("{korvet:orders:0}:$compacted.old", "")

    ((verdict, reason),) = reasons(server, "leftovers")

    assert Verdict.WARNING == verdict
    assert reason.startswith("keys of compactions of topics that are not compacted any more: 1 (")


def test_transaction_that_no_coordinator_knows_is_a_warning(
    server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_broker(server.tcp_url) as broker:
        broker.create_topic("orders")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("orders", b"a")
        producer.flush()
    client.xadd("{korvet:orders:0}:$open", {"foreign": "entry"})
    assert [(Verdict.OK, "none hangs")] == reasons(server, "transactions")  # it is a second old
    monkeypatch.setattr(transactions, "YOUNGEST_MS", 0)
    assert [(Verdict.OK, "none hangs")] == reasons(server, "transactions")  # its coordinator will end it

    client.delete("korvet:$document:transaction:x")

    ((verdict, reason),) = reasons(server, "transactions")
    assert Verdict.WARNING == verdict
    assert reason.startswith("open in 'orders-0', and no coordinator will end them")


def test_search_that_was_cut_short_says_so(
    server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server)
    client.mset({f"other:{number}": "" for number in range(5000)})
    monkeypatch.setattr(leftovers, "KEYS_LIMIT", 2000)

    expected = "there are none; only about 2,000 keys were looked at"
    assert [(Verdict.OK, expected)] == reasons(server, "leftovers")


def test_broker_that_is_registered_and_does_not_answer_is_a_warning(
    server: RedisServer, client: redis.Redis
) -> None:
    addresses = {"PLAINTEXT": ("127.0.0.1", free_port())}
    client.sadd("korvet:$documents:broker", 7)
    client.hset("korvet:$document:broker:7", "value", written(Registration(7, "x", addresses)))

    ((verdict, reason),) = reasons(server, "brokers")

    assert Verdict.WARNING == verdict
    assert reason.startswith("broker 7 at PLAINTEXT://127.0.0.1:")

    client.hset("korvet:$document:broker:7", "value", "{}")
    assert [Verdict.ERROR] == [verdict for verdict, _ in reasons(server, "brokers")]


def test_broker_that_runs_is_found(server: RedisServer, client: redis.Redis) -> None:
    with running_broker(server.tcp_url):
        assert [(Verdict.OK, "registered, and accepting connections: 1")] == reasons(server, "brokers")


def test_user_without_the_right_to_scan_has_no_warning(server: RedisServer, client: redis.Redis) -> None:
    finding = found(url_of(server, client, documented_rights()))["leftovers"]

    assert Verdict.OK == finding.verdict
    assert finding.reason.startswith("not looked for: Redis refuses SCAN")
