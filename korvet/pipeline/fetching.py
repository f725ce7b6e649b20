"""Fetches of raw record batches: one partition at a time for tasks, many partitions at once for planning.

A Fetch is repeated while its errors may pass, with leaders asked for anew in between, as the client's verbs do.
What comes is checked (CRC-32C) batch by batch before anybody looks at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import trio
from attrs import define, field, frozen

from korvet.client.client import Client
from korvet.client.cluster import error_about, raise_for
from korvet.client.model import Topic, TopicPartition
from korvet.protocol.errors import KafkaError, LeaderNotAvailable, OffsetOutOfRange, UnknownTopicOrPartition
from korvet.protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from korvet.protocol.record_batch import ControlType, RecordBatch, control_type, parse_batches, validate

FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 1.0
RETRY_TIMEOUT_S = 30.0
MAX_WAIT_MS = 500

READ_COMMITTED = 1


@frozen
class Fetched:
    """What one Fetch brought of a partition: whole batches, and where the log stood.

    `batches` are those with records for readers: neither control batches nor aborted ones. `next_offset` is the one
    behind the last batch that came, control batches included; `offset`, which was asked for, where none came. The first
    batch may begin before it.
    """

    offset: int
    batches: Sequence[RecordBatch]
    next_offset: int
    end_offset: int  # of what may be read: the high watermark, or the last stable offset
    log_start_offset: int


@define
class Fetcher:
    """Fetches for one isolation level, through an open client; remembers the leaders."""

    client: Client
    isolation_level: int
    _topics: dict[str, Topic] = field(factory=dict, init=False)

    async def fetch(
        self, tp: TopicPartition, offset: int, *, max_bytes: int, max_wait_ms: int = MAX_WAIT_MS
    ) -> Fetched:
        """What there is from `offset` on, at least one batch if there is any; waits for one only so long.

        Raises OffsetOutOfRange for an offset the log does not have, CorruptMessage for a wrong CRC, and whatever
        else the broker says once 30 s of trying again have not helped.
        """
        answers = await self.fetch_all(
            {tp: offset}, max_bytes=max_bytes, partition_bytes=max_bytes, max_wait_ms=max_wait_ms
        )
        return answers[tp]

    async def fetch_all(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        max_bytes: int,
        partition_bytes: int,
        max_wait_ms: int = 0,
    ) -> dict[TopicPartition, Fetched]:
        """The same for several partitions, in this order; the last ones are left empty once `max_bytes` are full."""
        started = trio.current_time()
        backoff_s = FIRST_BACKOFF_S
        answers: dict[TopicPartition, Fetched] = {}
        while True:
            try:
                for leader, tps in (await self._by_leader(offsets.keys() - answers.keys(), offsets)).items():
                    request = self._request(
                        {tp: offsets[tp] for tp in tps}, max_bytes, partition_bytes, max_wait_ms
                    )
                    answer = await self.client.request(request, FetchResponse, node_id=leader)
                    self._take(answer, offsets, answers)
                return answers
            except KafkaError as error:
                if not error.retriable or trio.current_time() > started + RETRY_TIMEOUT_S:
                    raise
                self._topics.clear()
            await trio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    async def is_gone(self, tp: TopicPartition, offset: int) -> bool:
        """Whether the log does not hold an offset any more, or not yet.

        ListOffsets does not tell: where offsets are times, the first record may lie far behind the last one that was
        deleted, and nothing was lost in between.
        """
        try:
            await self.fetch(tp, offset, max_bytes=1, max_wait_ms=0)
        except OffsetOutOfRange:
            return True
        return False

    async def _by_leader(
        self, missing: Iterable[TopicPartition], order: Iterable[TopicPartition]
    ) -> dict[int, list[TopicPartition]]:
        missing = set(missing)
        led: dict[int, list[TopicPartition]] = {}
        for tp in order:
            if tp in missing:
                led.setdefault(await self._leader(tp), []).append(tp)
        return led

    async def _leader(self, tp: TopicPartition) -> int:
        topic = self._topics.get(tp.topic)
        if topic is None:
            topic = self._topics[tp.topic] = await self.client.topic(tp.topic)
        leader = next((p.leader_id for p in topic.partitions if p.partition == tp.partition), None)
        if leader is None:
            raise UnknownTopicOrPartition(f"There is no {tp}.")
        if leader not in self.client.brokers:
            raise LeaderNotAvailable(f"{tp} has no leader at the moment.")
        return leader

    def _request(
        self, offsets: Mapping[TopicPartition, int], max_bytes: int, partition_bytes: int, max_wait_ms: int
    ) -> FetchRequest:
        topics: dict[str, FetchTopic] = {}
        for tp, offset in offsets.items():
            if tp.topic not in topics:
                known = self._topics[tp.topic]
                topics[tp.topic] = FetchTopic(topic=tp.topic, topic_id=known.topic_id, partitions=[])
            topics[tp.topic].partitions.append(
                FetchPartition(
                    partition=tp.partition, fetch_offset=offset, partition_max_bytes=partition_bytes
                )
            )
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=self.isolation_level,
            topics=list(topics.values()),
        )

    def _take(
        self,
        answer: FetchResponse,
        offsets: Mapping[TopicPartition, int],
        answers: dict[TopicPartition, Fetched],
    ) -> None:
        raise_for(answer.error_code, "Fetch")
        names = {topic.topic_id: name for name, topic in self._topics.items()}
        errors = []
        for topic in answer.responses:
            for data in topic.partitions:
                tp = TopicPartition(topic.topic or names[topic.topic_id], data.partition_index)
                if data.error_code:
                    errors.append(error_about(data.error_code, tp))
                else:
                    answers[tp] = self._fetched(data, offsets[tp])
        if errors:
            raise min(errors, key=lambda error: error.retriable)

    def _fetched(self, data: PartitionData, offset: int) -> Fetched:
        batches = [
            batch for buffer in data.records or () for batch in parse_batches(buffer, truncated_end_ok=True)
        ]
        for batch in batches:
            validate(batch)
        next_offset = batches[-1].last_offset + 1 if batches else offset
        committed = self.isolation_level == READ_COMMITTED
        aborted = (data.aborted_transactions or []) if committed else []
        return Fetched(
            offset,
            list(for_readers(batches, aborted)),
            max(next_offset, offset),
            data.last_stable_offset if committed and data.last_stable_offset >= 0 else data.high_watermark,
            data.log_start_offset,
        )


def for_readers(
    batches: Iterable[RecordBatch], aborted: Iterable[AbortedTransaction]
) -> Iterable[RecordBatch]:
    """The batches without control batches, and without those of transactions that were aborted (KIP-98)."""
    begins = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    producers: set[int] = set()
    for batch in batches:
        while begins and begins[-1].first_offset <= batch.last_offset:
            producers.add(begins.pop().producer_id)
        if batch.is_control:
            if control_type(batch) is ControlType.ABORT:
                producers.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in producers):
            yield batch
