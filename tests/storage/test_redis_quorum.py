"""acks=all with Sentinels: their answers decide about a write that not all replicas have confirmed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import trio

from korvet.protocol.errors import KafkaError, NotEnoughReplicasAfterAppend, RequestTimedOut
from korvet.storage.interface import OffsetAndMetadata, Storage, StorageDefaults, TopicConfig, TopicPartition
from korvet.storage.redis.failover.quorum import ELECTION_LIMIT_S
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import append, append_batch, batch, numbered, records_from
from tests.sentinels import Report, scripted_sentinel, sentinel_url
from tests.servers import VALKEY, ServerPair, free_port, on

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
DOWN = "s_down,slave,disconnected"
# Longer than any round; a write that may be lost is refused after it.
LIMIT_S = 1.5


@asynccontextmanager
async def stored(
    pair: ServerPair, *reports: Report, absent: int = 0, defaults: StorageDefaults | None = None
) -> AsyncIterator[Storage]:
    """Yield a storage with a topic that requires two copies; some Sentinels of its address are absent."""
    async with AsyncExitStack() as stack:
        ports = [
            await stack.enter_async_context(scripted_sentinel(lambda: pair[0].port, each)) for each in reports
        ]
        url = sentinel_url(*ports, *(free_port() for _ in range(absent)))
        storage = await stack.enter_async_context(open_redis_storage(url, defaults=defaults))
        with suppress(RequestTimedOut):  # it is created, though a report may make a replica hang
            await storage.create_topic("orders", 1, {"min.insync.replicas": "2", "offset.mapping": "dense"})
        yield storage


async def outcome(storage: Storage, timeout_s: float = LIMIT_S) -> type[object]:
    """Append a record; return the type of the result."""
    results = await storage.append({TP: batch(numbered(1))}, timeout_s=timeout_s)
    return type(results[TP])


async def is_acknowledged(storage: Storage, timeout_s: float = LIMIT_S) -> bool:
    found = await outcome(storage, timeout_s)
    assert not issubclass(found, KafkaError) or found is NotEnoughReplicasAfterAppend
    return not issubclass(found, KafkaError)


@on(VALKEY)
@pytest.mark.parametrize(
    "is_safe, prepare",
    [
        pytest.param(True, lambda _: None, id="other replica is down"),
        pytest.param(False, lambda report: report.replicas.update({1: "slave"}), id="could be promoted"),
        pytest.param(
            False, lambda report: report.replicas.update({1: "slave,disconnected"}), id="disconnected"
        ),
        pytest.param(
            False, lambda report: setattr(report, "flags", "master,failover_in_progress"), id="in progress"
        ),
        pytest.param(False, lambda report: setattr(report, "flags", "s_down,master"), id="primary is down"),
        pytest.param(False, lambda report: setattr(report, "voted_epoch", 1), id="voted"),
        pytest.param(False, lambda report: setattr(report, "sentinels", 6), id="no majority"),
    ],
)
async def test_write_that_not_all_replicas_confirm_counts_only_if_no_failover_can_lose_it(
    replica_pair: ServerPair, is_safe: bool, prepare: Callable[[Report], None]
) -> None:
    replica = replica_pair[1].port
    others = [Report(replicas={replica: "slave", 1: DOWN}, sentinels=3) for _ in range(2)]
    asked = Report(replicas={replica: "slave", 1: DOWN}, sentinels=3)
    prepare(asked)
    async with stored(replica_pair, asked, *others) as storage:
        acknowledged = await is_acknowledged(storage)
        # Consumers see what is acknowledged, and nothing else.
        visible = len(await records_from(storage, TP, 0)) if acknowledged else 0
        await append_batch(storage, TP, batch(numbered(1)), acks=1)
        if acknowledged:
            with trio.fail_after(10), storage.watch([TP]) as watch:
                while len(await records_from(storage, TP, 0)) < 2:
                    await watch.wait()

    assert (is_safe, int(is_safe)) == (acknowledged, visible)


@on(VALKEY)
async def test_write_that_all_replicas_confirm_counts_whatever_the_sentinels_report(
    replica_pair: ServerPair,
) -> None:
    report = Report(
        flags="master,failover_in_progress",
        replicas={replica_pair[1].port: "slave"},
        voted_epoch=7,
        sentinels=3,
    )
    async with stored(replica_pair, report, absent=2) as storage:
        assert [True] * 3 == [await is_acknowledged(storage) for _ in range(3)]


@on(VALKEY)
async def test_majority_of_the_sentinels_suffices(replica_pair: ServerPair) -> None:
    reports = [Report(replicas={replica_pair[1].port: "slave", 1: DOWN}, sentinels=3) for _ in range(2)]
    async with stored(replica_pair, *reports, absent=1) as storage:
        assert await is_acknowledged(storage)


@on(VALKEY)
async def test_write_waits_while_no_sentinel_has_named_the_replicas(replica_pair: ServerPair) -> None:
    """A replica that the primary has lost would be unknown."""
    report = Report(port=1, replicas={replica_pair[1].port: "slave"})
    async with stored(replica_pair, report) as storage:
        refused = await is_acknowledged(storage)
        report.port = 0
        accepted = await is_acknowledged(storage)

    assert (False, True) == (refused, accepted)


@on(VALKEY)
async def test_write_waits_until_the_sentinels_consider_the_silent_replica_down(
    replica_pair: ServerPair,
) -> None:
    replica = replica_pair[1].port
    report = Report(replicas={replica: "slave", 1: "slave"})
    async with stored(replica_pair, report) as storage, trio.open_nursery() as nursery:
        results: list[bool] = []

        async def write() -> None:
            results.append(await is_acknowledged(storage, 20))

        nursery.start_soon(write)
        with trio.move_on_after(1) as early:
            await append(storage, TP, numbered(1))
        waiting = list(results)
        report.replicas[1] = DOWN
        with trio.fail_after(10):
            await append(storage, TP, numbered(1))

    assert early.cancelled_caught
    assert ([], [True]) == (waiting, results)


@on(VALKEY)
async def test_commit_waits_as_a_record_does(replica_pair: ServerPair) -> None:
    report = Report(replicas={replica_pair[1].port: "slave", 1: "slave"})
    committed = {TP: OffsetAndMetadata(3)}
    two_copies = StorageDefaults(TopicConfig(min_insync_replicas=2))
    async with stored(replica_pair, report, defaults=two_copies) as storage:
        refused = (await storage.ack("readers", committed))[TP]
        report.replicas[1] = DOWN
        accepted = (await storage.ack("readers", committed))[TP]
        async with open_redis_storage(replica_pair[0].url) as other:
            stored_offset = (await other.committed("readers"))[TP].offset

    assert isinstance(refused, NotEnoughReplicasAfterAppend)
    assert (None, 3) == (accepted, stored_offset)


@on(VALKEY)
async def test_document_waits_as_a_record_does(replica_pair: ServerPair) -> None:
    report = Report(replicas={replica_pair[1].port: "slave", 1: "slave"})
    two_copies = StorageDefaults(TopicConfig(min_insync_replicas=2))
    async with stored(replica_pair, report, defaults=two_copies) as storage:
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await storage.save("group", "readers", b"1", expected_version=0)
        # A broker stays in session while replicas are away.
        renewed = [await storage.save("broker", "1", b"%d" % n, expected_version=n) for n in range(2)]
        report.replicas[1] = DOWN
        version = await storage.save("group", "readers", b"2", expected_version=1)
        found = await storage.load("group", "readers")

    assert ([1, 2], 2) == (renewed, version)
    assert found is not None
    assert b"2" == found.value


@on(VALKEY)
async def test_topic_waits_as_a_record_does(
    replica_pair: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.storage.redis.failover.confirmations.REPLICATED_LIMIT_S", LIMIT_S)
    report = Report(replicas={replica_pair[1].port: "slave", 1: "slave"})
    two_copies = StorageDefaults(TopicConfig(min_insync_replicas=2))
    async with stored(replica_pair, report, defaults=two_copies) as storage:
        with pytest.raises(RequestTimedOut, match="is altered on the server, but too few replicas"):
            await storage.create_topic("visits", 1, {})
        visits = (await storage.topics())["visits"]
        with pytest.raises(RequestTimedOut):
            await storage.alter_topic(visits, partitions=2)
        altered = (await storage.topics())["visits"]
        with pytest.raises(RequestTimedOut):
            await storage.delete_topic(altered)
        remaining = list(await storage.topics())
        report.replicas[1] = DOWN
        clicks = await storage.create_topic("clicks", 1, {})
        clicks = await storage.alter_topic(clicks, partitions=3)
        await storage.delete_topic(clicks)

    assert (1, 2, 3) == (visits.partitions, altered.partitions, clicks.partitions)
    assert ["orders"] == remaining


@on(VALKEY)
async def test_vote_for_a_failover_that_was_given_up_is_forgotten(
    replica_pair: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The failover itself has two seconds (twice the `failover-timeout` of the report).
    monkeypatch.setattr("korvet.storage.redis.failover.quorum.ELECTION_LIMIT_S", ELECTION_LIMIT_S - 10)
    report = Report(replicas={replica_pair[1].port: "slave", 1: DOWN}, voted_epoch=1)
    async with stored(replica_pair, report) as storage:
        early = await is_acknowledged(storage, 0.5)
        with trio.fail_after(10):
            later = await is_acknowledged(storage, 8)

    assert (False, True) == (early, later)
