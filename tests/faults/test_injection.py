"""Faults as a broker applies them: their count, probability, order and end."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import trio
from attrs import evolve

from korvet.broker.context import CutShort, Disconnect, RequestContext
from korvet.faults.kinds import Delay, Drop, Error, Freeze, RaiseLeaderEpoch, Throttle, Truncate
from korvet.handlers import APIS
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.wrapped_apis import WrappedApis
from korvet.testing import ServedBroker, serving

LIST_OFFSETS, METADATA, HEARTBEAT = 2, 3, 12
CONTEXT = RequestContext(4, "client")


async def ask(broker: ServedBroker, key: int, body: Any, context: RequestContext = CONTEXT) -> Any:
    """Send a request to the handler behind the faults of the broker."""
    return await broker.faults.apis(APIS)[key].handle(broker.server.broker, body, context)


def heartbeat(group: str = "g") -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=1, member_id="m")


async def heartbeat_code(broker: ServedBroker, group: str = "g", client: str = "client") -> ErrorCode:
    return ErrorCode((await ask(broker, HEARTBEAT, heartbeat(group), RequestContext(4, client))).error_code)


def list_offsets(*partitions: int, epoch: int = -1) -> ListOffsetsRequest:
    wanted = [
        ListOffsetsPartition(partition_index=number, current_leader_epoch=epoch, timestamp=-1)
        for number in partitions
    ]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=wanted)])


def codes(response: Any) -> dict[int, str]:
    return {
        each.partition_index: ErrorCode(each.error_code).name
        for topic in response.topics
        for each in topic.partitions
    }


async def test_fault_ends_after_its_count() -> None:
    async with serving() as broker:
        injected = broker.faults.add(Error("NOT_COORDINATOR", count=2))

        found = [await heartbeat_code(broker) for _ in range(3)]

        assert ["NOT_COORDINATOR", "NOT_COORDINATOR", "UNKNOWN_MEMBER_ID"] == [each.name for each in found]
        assert (2, []) == (injected.hits, broker.faults.active())


async def test_probability_follows_the_seed() -> None:
    async with serving() as broker:
        broker.faults.random = Random(1)
        injected = broker.faults.add(Error("NOT_COORDINATOR", probability=0.5))
        for _ in range(100):
            await heartbeat_code(broker)

        expected = Random(1)
        assert sum(expected.random() < 0.5 for _ in range(100)) == injected.hits


async def test_filters_apply_together() -> None:
    async with serving() as broker:
        broker.faults.add(Error("NOT_COORDINATOR", api="Heartbeat", group="g", client_id="client"))

        assert ErrorCode.NOT_COORDINATOR == await heartbeat_code(broker)
        assert ErrorCode.UNKNOWN_MEMBER_ID == await heartbeat_code(broker, group="h")
        assert ErrorCode.UNKNOWN_MEMBER_ID == await heartbeat_code(broker, client="other")


async def test_error_of_a_partition_leaves_the_others_alone() -> None:
    async with serving() as broker:
        await broker.create_topic("orders", partitions=3)
        broker.faults.add(Error("NOT_LEADER_OR_FOLLOWER", topic="orders", partition=1))

        found = codes(await ask(broker, LIST_OFFSETS, list_offsets(0, 1, 2)))

        assert {0: "NONE", 1: "NOT_LEADER_OR_FOLLOWER", 2: "NONE"} == found


async def test_error_of_metadata_keeps_brokers_and_other_topics() -> None:
    async with serving() as broker:
        for name in ("orders", "payments"):
            await broker.create_topic(name)
        broker.faults.add(Error("LEADER_NOT_AVAILABLE", topic="orders", api="Metadata"))
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in ("orders", "payments")])

        found = await ask(broker, METADATA, request)

        assert 1 == len(found.brokers)
        assert [("orders", 5, 0), ("payments", 0, 1)] == [
            (each.name, each.error_code, len(each.partitions)) for each in found.topics
        ]


async def test_clients_with_the_old_leader_epoch_are_fenced() -> None:
    async with serving() as broker:
        await broker.create_topic("orders")
        broker.faults.add(RaiseLeaderEpoch(topic="orders"))

        for epoch, expected in (
            (0, "FENCED_LEADER_EPOCH"),
            (1, "NONE"),
            (2, "UNKNOWN_LEADER_EPOCH"),
            (-1, "NONE"),
        ):
            assert {0: expected} == codes(await ask(broker, LIST_OFFSETS, list_offsets(0, epoch=epoch)))
        every = MetadataRequest(topics=None)
        found = await ask(broker, METADATA, every, RequestContext(12, "client"))
        assert [1] == [each.leader_epoch for each in found.topics[0].partitions]


async def test_frozen_request_is_served_when_the_fault_ends(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as broker, trio.open_nursery() as nursery:
        injected = broker.faults.add(Freeze(api="Heartbeat"))
        answered = trio.Event()

        async def beat() -> None:
            await heartbeat_code(broker)
            answered.set()

        nursery.start_soon(beat)
        await trio.testing.wait_all_tasks_blocked()
        assert (1, False) == (injected.hits, answered.is_set())
        await trio.to_thread.run_sync(injected.end)
        await answered.wait()


async def test_frozen_request_ends_with_the_broker() -> None:
    with pytest.RaisesGroup(Disconnect):
        async with trio.open_nursery() as nursery, serving() as broker:
            broker.faults.add(Freeze())
            nursery.start_soon(ask, broker, HEARTBEAT, heartbeat())
            await trio.testing.wait_all_tasks_blocked()


async def test_delay_lasts_its_time_or_until_it_is_ended(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as broker:
        broker.faults.add(Delay(5000, count=1))
        began = trio.current_time()
        await heartbeat_code(broker)

        assert 5 == pytest.approx(trio.current_time() - began)


@pytest.mark.parametrize("fault", [Drop(), Drop("after")], ids=["before", "after"])
async def test_dropped_connection_has_done_the_work_or_not(fault: Drop) -> None:
    served: list[object] = []

    async def handle(*arguments: object) -> None:
        served.append(arguments)

    async with serving() as broker:
        broker.faults.add(fault)
        with pytest.raises(Disconnect, match=f"{fault.when} a Heartbeat"):
            await broker.faults.handle(
                evolve(APIS[HEARTBEAT], handle=handle), broker.server.broker, heartbeat(), CONTEXT
            )

    assert (fault.when == "after") == bool(served)


async def test_truncated_response_is_the_one_of_the_handler() -> None:
    async with serving() as broker:
        broker.faults.add(Truncate())
        with pytest.raises(CutShort) as raised:
            await ask(broker, HEARTBEAT, heartbeat())

    assert ErrorCode.UNKNOWN_MEMBER_ID == raised.value.response.error_code  # type: ignore[attr-defined]


async def test_several_faults_affect_one_request(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as broker:
        for fault in (Delay(1000), Throttle(7), Error("NOT_COORDINATOR")):
            broker.faults.add(fault)
        began = trio.current_time()

        found = await ask(broker, HEARTBEAT, heartbeat())

        assert (7, ErrorCode.NOT_COORDINATOR) == (found.throttle_time_ms, found.error_code)
        assert trio.current_time() - began >= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Error("NO_SUCH_ERROR"),
        lambda: Error("NOT_COORDINATOR", api="NoSuchApi"),
        lambda: Error("NOT_COORDINATOR", probability=0),
        lambda: Delay(-1),
        lambda: Drop("later"),
    ],
    ids=["error", "api", "probability", "delay", "when"],
)
def test_invalid_fault_is_refused(make: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  attrs' own messages
        make()


async def test_cleared_faults_affect_nothing() -> None:
    async with serving() as broker:
        broker.faults.add(Error("NOT_COORDINATOR"))
        broker.faults.clear()

        assert ErrorCode.UNKNOWN_MEMBER_ID == await heartbeat_code(broker)


async def test_table_with_faults_has_the_same_apis() -> None:
    async with serving() as broker:
        table = broker.faults.apis(APIS)

        assert isinstance(table, WrappedApis)
        assert [*APIS] == [*table]
        assert len(APIS) == len(table)
        assert APIS[METADATA].request is table[METADATA].request
        assert None is table.get(999)
