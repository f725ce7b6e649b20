"""The statements of the reference page "Commit Offsets"."""

from __future__ import annotations

from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from korvet.storage.interface import TopicPartition
from korvet.testing.records import numbered
from tests.groups.conversation import subscription
from tests.reference.conversation import BITS, GROUP, ORDERS, STREAM, Conversation
from tests.reference.places import BY_TIME_ON_REDIS, ON_REDIS


async def join(broker: Conversation) -> tuple[int, str]:
    """Join and sync as the only member; return the generation and the member's id."""
    protocols = [JoinGroupRequestProtocol(name="range", metadata=subscription("orders"))]
    joined = await broker.client.ask(
        JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        ),
        3,
    )
    assignments = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")]
    await broker.client.ask(
        SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=assignments,
        ),
        2,
    )
    return joined.generation_id, joined.member_id


@BY_TIME_ON_REDIS
async def test_entry_before_the_committed_offset_is_acknowledged(broker: Conversation) -> None:
    broker.add("1234567890123-0", 1_234_567_890_000)
    broker.add("1234567890123-1", 1_234_567_890_000)
    await broker.create()
    broker.plain.xgroup_create(STREAM, GROUP, "0")
    broker.plain.xreadgroup(GROUP, "worker", {STREAM: ">"})
    committed_offset = (1_234_567_890_123 << BITS | 0) + 1
    errors = await broker.commit({ORDERS: committed_offset}, metadata="processed batch 123")
    pending = broker.plain.xpending(STREAM, GROUP)

    assert [ErrorCode.NONE] == errors
    assert (1, "1234567890123-1") == (pending["pending"], pending["min"])
    assert "1234567890123-0" == broker.group()["last-delivered-id"]


@ON_REDIS
async def test_all_entries_before_the_committed_offset_are_acknowledged(broker: Conversation) -> None:
    """The page acknowledges the entries that the client has read; a Kafka commit covers all lower offsets."""
    await broker.create()
    for _ in range(5):
        last = (await broker.produce(*numbered(1))).base_offset
    broker.plain.xgroup_create(STREAM, GROUP, "0")
    broker.plain.xreadgroup(GROUP, "worker", {STREAM: ">"})
    await broker.commit({ORDERS: last})

    assert 1 == broker.plain.xpending(STREAM, GROUP)["pending"]


async def test_committed_offset_is_the_next_to_read(broker: Conversation) -> None:
    await broker.create()
    base_offset = (await broker.produce(*numbered(3))).base_offset
    await broker.commit({ORDERS: base_offset + 1})
    _, records = await broker.fetch(await broker.committed())

    assert [b"1", b"2"] == [record.value for record in records]


@ON_REDIS
async def test_offset_is_stored_beside_the_redis_group(broker: Conversation) -> None:
    """The page says that XACK is the commit; metadata, a commit behind a gap and the fence need a store."""
    await broker.create()
    await broker.commit({ORDERS: 44}, metadata="processed batch 123")
    stored = broker.plain.hget(f"korvet:$group:{GROUP}", "offset:orders:0")
    assert isinstance(stored, str)
    offset, *_, metadata = stored.split(" ", 4)

    assert ("44", "processed batch 123") == (offset, metadata)


async def test_commit_of_an_unknown_member_is_refused_with_unknown_member_id(broker: Conversation) -> None:
    """The page names error code 25."""
    await broker.create()
    generation_id, _ = await join(broker)

    assert [25] == await broker.commit({ORDERS: 1}, generation_id=generation_id, member_id="consumer-1-uuid")
    assert -1 == await broker.committed()


async def test_commit_of_another_generation_is_refused_with_illegal_generation(broker: Conversation) -> None:
    """The page names error code 22."""
    await broker.create()
    generation_id, member_id = await join(broker)
    as_member = [
        await broker.commit({ORDERS: 1}, generation_id=generation_id + more, member_id=member_id)
        for more in (-1, 1, 0)
    ]

    assert [[22], [22], [0]] == as_member


async def test_one_request_commits_several_partitions(broker: Conversation) -> None:
    await broker.create("orders")
    await broker.create("payments")
    payments, unknown = TopicPartition("payments", 0), TopicPartition("refunds", 0)
    errors = await broker.commit({ORDERS: 44, unknown: 1, payments: 100})

    assert [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE] == errors
    assert (44, 100) == (await broker.committed(), await broker.committed(payments))
