"""aiokafka; its event loop runs for the duration of each call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from tests.clients.interface import FETCH_WAIT_MS, LIMIT_S, AdminClient, Received, Record

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, for at most LIMIT_S."""

    async def limited() -> T:
        return await asyncio.wait_for(work, LIMIT_S)

    return asyncio.run(limited())


class AioKafka(AdminClient):
    id = "aiokafka"

    def create_topic(
        self, topic: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                new = NewTopic(topic, partitions, 1, topic_configs=dict(settings or {}))
                _raise_errors((await admin.create_topics([new])).topic_errors)

        run(work())

    def delete_topic(self, topic: str) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                _raise_errors((await admin.delete_topics([topic])).topic_error_codes)

        run(work())

    def partitions(self, topic: str) -> set[int]:
        async def work() -> set[int]:
            async with self._admin() as admin:
                if topic not in await admin.list_topics():
                    return set()
                (found,) = await admin.describe_topics([topic])
                return {partition["partition"] for partition in found["partitions"]}

        return run(work())

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> None:
        async def work() -> None:
            async with AIOKafkaProducer(
                bootstrap_servers=self.bootstrap_servers,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                linger_ms=5,
            ) as producer:
                futures = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        record.partition,
                        record.timestamp_ms,
                        list(record.headers),
                    )
                    for record in records
                ]
                await asyncio.gather(*futures)

        run(work())

    def consume(
        self, topic: str, count: int, *, partition: int = 0, start: int | None = None
    ) -> list[Received]:
        async def work() -> list[Received]:
            tp = TopicPartition(topic, partition)
            async with self._consumer() as consumer:
                consumer.assign([tp])
                if start is None:
                    await consumer.seek_to_beginning(tp)
                else:
                    consumer.seek(tp, start)
                return [_received(await consumer.getone()) for _ in range(count)]

        return run(work())

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        async def work() -> int | None:
            tp = TopicPartition(topic, partition)
            async with self._consumer() as consumer:
                consumer.assign([tp])
                found = (await consumer.offsets_for_times({tp: timestamp_ms}))[tp]
                return None if found is None else found.offset

        return run(work())

    def consume_first(self, topic: str, produce: Callable[[], None]) -> Received:
        async def work() -> Received:
            tp = TopicPartition(topic, 0)
            async with self._consumer() as consumer:
                consumer.assign([tp])
                await consumer.seek_to_beginning(tp)
                # The position is known once the broker returned the first offset; fetching starts then.
                await consumer.position(tp)
                assert not await consumer.getmany(tp, timeout_ms=200)
                await asyncio.to_thread(produce)
                return _received(await consumer.getone())

        return run(work())

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        async def work() -> tuple[int, int]:
            tp = TopicPartition(topic, partition)
            async with self._consumer() as consumer:
                return (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]

        return run(work())

    def commit(
        self, group_id: str, topic: str, offset: int, *, metadata: str = "", partition: int = 0
    ) -> None:
        async def work() -> None:
            tp = TopicPartition(topic, partition)
            async with self._consumer(group_id=group_id) as consumer:
                consumer.assign([tp])
                await consumer.commit({tp: OffsetAndMetadata(offset, metadata)})

        run(work())

    def committed(self, group_id: str, topic: str, *, partition: int = 0) -> tuple[int, str] | None:
        async def work() -> tuple[int, str] | None:
            tp = TopicPartition(topic, partition)
            async with self._consumer(group_id=group_id) as consumer:
                consumer.assign([tp])
                # The public `committed` returns only the offset; the internal request returns metadata as well.
                found = (await consumer._coordinator.fetch_committed_offsets([tp])).get(tp)
                offset = await consumer.committed(tp)
                assert offset == (None if found is None else found.offset)
                return None if found is None else (found.offset, found.metadata)

        return run(work())

    def resume(self, group_id: str, topic: str, count: int, *, partition: int = 0) -> list[Received]:
        async def work() -> list[Received]:
            async with self._consumer(group_id=group_id) as consumer:
                consumer.assign([TopicPartition(topic, partition)])
                return [_received(await consumer.getone()) for _ in range(count)]

        return run(work())

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def _consumer(self, **settings: Any) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap_servers,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=FETCH_WAIT_MS + 10_000,
            **settings,
        )


def _raise_errors(errors: Sequence[Sequence[Any]]) -> None:
    """Raise the errors that aiokafka's admin client leaves in the response."""
    for name, code, *message in errors:
        if code:
            raise AssertionError(f"{name}: error {code} {message}")


def _received(message: Any) -> Received:
    return Received(
        offset=message.offset,
        timestamp_ms=message.timestamp,
        record=Record(
            value=message.value,
            key=message.key,
            headers=tuple(message.headers),
            partition=message.partition,
        ),
    )
