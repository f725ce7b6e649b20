"""Share groups in memory and in both layouts and mappings of Redis, beside a model, through the broker's handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

import pytest
import redis
import trio
import trio.testing
from attrs import define, field
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.storage.interface import Storage, Topic, TopicPartition
from korvet.storage.memory import MemoryStorage
from korvet.storage.redis_streams import open_redis_storage
from tests.handlers.share_groups import ACCEPT, REJECT, RELEASE, RENEW, ShareMember, configure, values
from tests.handlers.support import append, create, new_broker
from tests.servers import RedisServer

LIMIT = 3
LOCK_MS = 30_000
GROUP = "g"
NUMBERS = count()

MEMBERS = st.sampled_from(["alice", "bob"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(1, 3)),
        st.tuples(st.just("acquire"), MEMBERS, st.integers(1, 6)),
        st.tuples(st.just("acquire"), MEMBERS, st.integers(1, 6)),
        st.tuples(
            st.just("acknowledge"),
            MEMBERS,
            st.integers(0, 6),
            st.integers(1, 3),
            st.sampled_from([ACCEPT, RELEASE, REJECT, RENEW]),
        ),
        st.tuples(
            st.just("acknowledge_own"), MEMBERS, st.integers(1, 5), st.sampled_from([ACCEPT, RELEASE, REJECT])
        ),
        st.tuples(st.just("close"), MEMBERS),
        st.tuples(st.just("end_locks")),
        st.tuples(st.just("end_locks")),
        st.tuples(st.just("read_plain"), st.integers(1, 3)),
    ),
    min_size=10,
    max_size=30,
)


@define
class Record:
    """A record in the model."""

    offset: int
    count: int = 0
    member: str = ""
    is_finished: bool = False
    is_expired: bool = False  # archived because its last lock has ended

    @property
    def is_in_flight(self) -> bool:
        return self.count > 0 and not self.is_finished


@define(eq=False)
class Queue:
    """A partition, its members, and the model. `redis` is set if plain consumers may read it."""

    storage: Storage
    clock: trio.testing.MockClock
    layout: dict[str, str]
    redis: redis.Redis | None = None
    name: str = field(factory=lambda: f"jobs{next(NUMBERS)}")
    records: list[Record] = field(factory=list)
    members: dict[str, ShareMember] = field(factory=dict)
    broker: Broker = field(init=False)
    topic: Topic = field(init=False)
    tp: TopicPartition = field(init=False)

    async def run(self, steps: list[tuple[Any, ...]]) -> None:
        self.broker = await new_broker(self.storage)
        self.topic = await create(self.broker, self.name, **self.layout)
        self.tp = TopicPartition(self.name, 0)
        await configure(self.broker, GROUP, delivery_count_limit=str(LIMIT))
        assert [] == await self.member("alice").acquired(0)
        for name, *arguments in steps:
            await getattr(self, name)(*arguments)
        await self.drain()

    def member(self, name: str) -> ShareMember:
        return self.members.setdefault(name, ShareMember(self.broker, self.topic.topic_id, GROUP, name))

    @property
    def in_flight(self) -> list[Record]:
        return [each for each in self.records if each.is_in_flight]

    @property
    def stream(self) -> str:
        return f"korvet:{self.name}:0"

    # --- Steps ------------------------------------------------------------------------------------------

    async def produce(self, number: int) -> None:
        before = len(self.records)
        appended = [b"%d" % index for index in range(before, before + number)]
        await append(self.broker, self.tp, *appended)
        end = (await self.broker.log.latest(self.tp)).high_watermark
        self.records += [Record(end - number + index) for index in range(number)]

    async def acquire(self, name: str, most: int) -> None:
        is_new = name not in self.members
        response = await self.member(name).fetch(*([0] if is_new else []), max_records=most)

        found = [
            r for topic in response.responses for data in topic.partitions for r in data.acquired_records
        ]
        available = [each for each in self.in_flight if not each.member]
        new = [each for each in self.records if not each.count]
        expected: list[Record] = []
        room = most
        for each in [*available, *new]:
            is_last_attempt = each.count == LIMIT - 1
            if len(expected) == room or (is_last_attempt and expected):
                break
            expected.append(each)
            if is_last_attempt:
                room = 1
        expected.sort(key=lambda each: each.offset)
        for each in expected:
            each.count, each.member = each.count + 1, name
        got = [(o, r.delivery_count) for r in found for o in range(r.first_offset, r.last_offset + 1)]
        assert [(each.offset, each.count) for each in expected] == got
        assert [b"%d" % self.records.index(each) for each in expected] == values(response)

    async def acknowledge_own(self, name: str, number: int, kind: int) -> None:
        own = [each for each in self.in_flight if each.member == name][:number]
        if own:
            assert ErrorCode.NONE == await self._acknowledge(name, own, kind)

    async def acknowledge(self, name: str, first: int, number: int, kind: int) -> None:
        await self._acknowledge(name, self.records[first : first + number], kind)

    async def _acknowledge(self, name: str, records: list[Record], kind: int) -> int:
        if not records or name not in self.members:
            return ErrorCode.NONE
        expected, is_below = ErrorCode.NONE, False
        start = min([each.offset for each in self.records if not each.is_finished], default=2**63)
        for each in records:
            if not each.count:
                expected = ErrorCode.INVALID_REQUEST
            elif each.is_in_flight and each.member == name:
                continue
            elif each.offset < start:
                is_below = True
                continue
            else:
                expected = ErrorCode.INVALID_RECORD_STATE
            break
        acks = [(each.offset, each.offset, [kind]) for each in records]
        code = await self.member(name).acknowledge(*acks, is_renew_ack=kind == RENEW)
        # Redis archives such a record at the next acquisition.
        may_be_late = is_below and any(each.is_expired for each in self.records)
        assert code == expected or (may_be_late and code == ErrorCode.INVALID_RECORD_STATE)
        if code == ErrorCode.NONE:
            for each in records:
                if each.is_in_flight and kind == RELEASE:
                    self._give_back(each)
                elif each.is_in_flight and kind != RENEW:
                    each.is_finished = True
        return code

    @staticmethod
    def _give_back(record: Record) -> None:
        record.member = ""
        record.is_finished = record.count >= LIMIT

    async def close(self, name: str) -> None:
        if (member := self.members.pop(name, None)) is not None:
            await member.fetch(share_session_epoch=-1)
            for each in self.in_flight:
                if each.member == name:
                    self._give_back(each)

    async def end_locks(self) -> None:
        self.clock.jump(LOCK_MS / 1000)
        if self.redis is not None:
            for entry in self.redis.xpending_range(self.stream, GROUP, "-", "+", 1000):
                if entry["consumer"] != b"$released":
                    self.redis.xclaim(
                        self.stream,
                        GROUP,
                        entry["consumer"],
                        0,
                        [entry["message_id"]],
                        idle=LOCK_MS,
                        justid=True,
                    )
        for each in self.in_flight:
            if each.member:
                self._give_back(each)
                each.is_expired = each.is_finished

    async def read_plain(self, number: int) -> None:
        if self.redis is None:
            return
        found: Any = self.redis.xreadgroup(GROUP, "plain", {self.stream: ">"}, count=number)
        new = [each for each in self.records if not each.count][:number]
        assert [b"%d" % self.records.index(each) for each in new] == [
            fields[b"value"] for _, entries in found for _, fields in entries
        ]
        for each in new:
            each.count, each.member = 1, "plain"

    async def drain(self) -> None:
        """Finish all records that are left."""
        await self.end_locks()
        await self.acquire("drain", 1000)  # Redis archives records whose last lock has ended only here
        while own := [each for each in self.in_flight if each.member == "drain"]:
            assert ErrorCode.NONE == await self._acknowledge("drain", own, ACCEPT)
            await self.acquire("drain", 1000)
        assert all(each.is_finished for each in self.records)
        assert [] == (await self.member("drain").fetch()).responses
        if self.redis is not None:
            assert 0 == self.redis.xpending(self.stream, GROUP)["pending"]


Open = Callable[[], AbstractAsyncContextManager[Storage]]


def run(open_storage: Open, layout: dict[str, str], client: redis.Redis | None, *, max_examples: int) -> None:
    @settings(max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=STEPS)
    def runs(steps: list[tuple[Any, ...]]) -> None:
        clock = trio.testing.MockClock()

        async def main() -> None:
            async with open_storage() as storage:
                await Queue(storage, clock, layout, client).run(steps)

        trio.run(main, clock=clock)

    runs()


@pytest.mark.parametrize("mapping", ["dense", "timestamp"])
def test_share_groups_in_memory_match_the_model(mapping: str) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Storage]:
        yield MemoryStorage()

    run(opened, {"offset_mapping": mapping}, None, max_examples=80)


@pytest.mark.servers
@pytest.mark.parametrize("mapping", ["dense", "timestamp"])
@pytest.mark.parametrize("layout", ["record", "batch"])
def test_share_groups_on_redis_match_the_model(
    redis_server: RedisServer, client: redis.Redis, layout: str, mapping: str
) -> None:
    run(
        lambda: open_redis_storage(redis_server.url),
        {"storage_layout": layout, "offset_mapping": mapping},
        client if layout == "record" else None,
        max_examples=60,
    )
