"""docs/redis-mapping.md names the commands that Redis receives for each request, as MONITOR shows them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from attrs import define
from redis.client import Monitor

from korvet.storage.redis import groups, scripts, shares
from korvet.storage.redis.client.connection import Script
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import T0, Producer, Record, batch, numbered
from tests.reference.conversation import GROUP, ORDERS, STREAM, Conversation, conversing
from tests.reference.places import Place, on
from tests.servers import VALKEY, start_server

PAGE = Path(__file__).parents[2] / "docs" / "redis-mapping.md"
PLACES = on([Place(VALKEY, "record", "timestamp"), Place(VALKEY, "batch", "dense")])
SCRIPTS = {
    script.sha.decode(): name.lower()
    for module in (scripts, groups, shares)
    for name, script in vars(module).items()
    if isinstance(script, Script)
}


def documented(layout: str) -> dict[str, str]:
    """Return the commands in each row of the page's tables, without rows of the other layout."""
    rows = dict(re.findall(r"^\| ([^|]+) \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE))
    other = "batch layout" if layout == "record" else "record layout"
    return {situation: commands for situation, commands in rows.items() if other not in situation}


@define
class Observer:
    """The commands of one connection, and of the scripts it calls."""

    monitor: Monitor
    marker: redis.Redis
    address: str

    def commands(self) -> str:
        """Return the commands since the last call; those of a script follow its name in brackets."""
        self.marker.echo("until here")
        found: list[str] = []
        while not (line := self.monitor.next_command())["command"].startswith("ECHO"):
            name, *arguments = line["command"].split(" ", 2)
            if line["client_type"] == "lua":
                found[-1] = f"{found[-1].removesuffix(')')}{' ' if found[-1][-1] == ')' else '('}{name})"
            elif f"{line['client_address']}:{line['client_port']}" == self.address:
                found.append(f"{name} {SCRIPTS[arguments[0]]}" if name == "EVALSHA" else name)
        return " ".join(found)


@contextmanager
def observing(client: redis.Redis) -> Iterator[Observer]:
    """Observe the connection on which a broker reads and writes small data."""
    (address,) = [each["addr"] for each in client.client_list() if each["name"] == "korvet"]
    with client.monitor() as monitor:
        yield Observer(monitor, client, address)


@pytest.fixture
async def monitored(place: Place) -> AsyncIterator[Conversation]:
    """A broker on its own server, reached by TCP, where each connection has a different address."""
    server = start_server(VALKEY, tcp=True)
    try:
        async with open_redis_storage(server.tcp_url) as storage:
            with server.client(decode_responses=True, encoding_errors="replace") as client:
                async with conversing(storage, place, client) as conversation:
                    yield conversation
    finally:
        server.remove()


async def observe(broker: Conversation) -> dict[str, str]:
    """Send each request of the page, and return the commands that it caused."""
    await broker.create(retention_ms="-1")  # retention looks at the index once a second
    observed: dict[str, str] = {}
    base_offset = (await broker.produce(Record(b"v"))).base_offset
    await broker.fetch(base_offset)  # opens connections
    with observing(broker.plain) as observer:

        def note(situation: str) -> None:
            observed[situation] = observer.commands()

        await broker.produce(Record(b"v"))
        note("Produce of one record")
        for sequence in range(2):
            await broker.produce(produced=batch(numbered(1), producer=Producer(7, 0, sequence)))
            observed["Produce of an idempotent producer"] = observer.commands()
        await broker.produce(produced=batch(numbered(1), producer=Producer(7, 0, 1)))
        note("Produce of a batch that is repeated")

        for timestamp, name in ((-1, "latest"), (-2, "earliest"), (-3, "largest timestamp"), (T0, "a time")):
            await broker.list_offsets(timestamp)
            note(f"ListOffsets of {name}")
        await broker.list_offsets(T0 + 1)
        note("ListOffsets of a time after all records")

        await broker.fetch(base_offset)
        note("Fetch")
        end = await broker.offset(-1)
        observer.commands()
        await broker.fetch(end)
        note("Fetch at the end of the log")

        await broker.committed()
        note("OffsetFetch without a committed offset")
        broker.plain.xgroup_create(STREAM, GROUP, "0")
        await broker.committed()
        note("OffsetFetch of a Redis consumer group")
        broker.plain.xreadgroup(GROUP, "worker", {STREAM: ">"}, count=1)
        await broker.committed()
        note(f"OffsetFetch of a Redis consumer group with pending entries, {broker.place.layout} layout")

        await broker.commit({ORDERS: end})
        note("OffsetCommit, the first one of a group")
        broker.plain.xreadgroup(GROUP, "worker", {STREAM: ">"}, count=1)
        await broker.commit({ORDERS: end})
        note("OffsetCommit")
        await broker.commit({ORDERS: base_offset + 1})
        note("OffsetCommit in the middle of the log")
        broker.plain.xreadgroup(GROUP, "worker", {STREAM: ">"}, count=1)
        await broker.commit({ORDERS: end})
        note("OffsetCommit of entries that are pending")
        await broker.committed()
        note("OffsetFetch")

        broker.plain.xadd(
            STREAM, {"value": "v"}, id="*" if broker.place.layout == "batch" else "4000000000000-0"
        )
        await broker.fetch(end)
        note("Fetch of an entry that another program added")
        if broker.place.layout == "record":
            await observe_shares(broker, note)
    return observed


async def observe_shares(broker: Conversation, note: Callable[[str], None]) -> None:
    """Send requests of a share consumer."""
    topic_id = (await broker.server.broker.find_topic("orders")).topic_id
    await broker.share_fetch(topic_id, 0)
    note("ShareFetch, the first one of a group, record layout")
    await broker.produce(Record(b"v"))
    note("")
    acquired = await broker.share_fetch(topic_id, 1)
    note("ShareFetch of new records, record layout")
    await broker.share_fetch(topic_id, 2)
    note("ShareFetch without records, record layout")
    await broker.share_acknowledge(topic_id, 3, acquired[0], 2)
    note("ShareAcknowledge that releases, record layout")
    await broker.share_fetch(topic_id, 4)
    note("ShareFetch of a record that is available again, record layout")
    await broker.share_acknowledge(topic_id, 5, acquired[0], 1)
    note("ShareAcknowledge that accepts, record layout")
    await broker.share_fetch(topic_id, -1)
    note("ShareFetch at the end of a session, record layout")


@PLACES
async def test_page_lists_the_commands_of_each_request(monitored: Conversation) -> None:
    observed = await observe(monitored)
    observed.pop("", None)

    assert documented(monitored.place.layout) == observed


@PLACES
async def test_command_count_is_independent_of_the_log_length(monitored: Conversation) -> None:
    await monitored.create()
    for _ in range(20):
        await monitored.produce(*(Record(b"x" * 1_000) for _ in range(100)))
    rows = documented(monitored.place.layout)
    found = []
    with observing(monitored.plain) as observer:
        for timestamp in (-1, -2):
            await monitored.list_offsets(timestamp)
            found.append(observer.commands())

    assert [rows["ListOffsets of latest"], rows["ListOffsets of earliest"]] == found
