"""Fetch raw record batches: of one partition for tasks, of many partitions together for planning.

A Fetch is retried after retriable errors, with refreshed metadata, as the client's own methods do. The CRC-32C of every
batch is checked first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import trio
from attrs import define, field, frozen

from korvet.client.client import Client
from korvet.client.cluster import error_about, raise_for
from korvet.client.isolation import READ_COMMITTED, Passing
from korvet.client.model import Topic, TopicPartition
from korvet.protocol.errors import KafkaError, LeaderNotAvailable, OffsetOutOfRange, UnknownTopicOrPartition
from korvet.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from korvet.protocol.record_batch import RecordBatch, parse_batches, validate

FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 1.0
RETRY_TIMEOUT_S = 30.0
MAX_WAIT_MS = 500


@frozen
class Fetched:
    """Whole batches of a partition from one Fetch, and the state of its log.

    `batches` are those for consumers, without control batches and aborted ones. `next_offset` follows the last batch of
    the response, control batches included; without batches it is `offset`, the requested one. The first batch may begin
    before `offset`.
    """

    offset: int
    batches: Sequence[RecordBatch]
    next_offset: int
    end_offset: int  # the high watermark, or the last stable offset
    log_start_offset: int
    passing: Passing = field(factory=Passing)


@define
class Fetcher:
    """Fetches with one isolation level, through an open client, and caches the leaders."""

    client: Client
    isolation_level: int
    #: The topics that are known, by name.
    _topics: dict[str, Topic] = field(factory=dict)

    async def fetch(
        self, tp: TopicPartition, offset: int, *, max_bytes: int, max_wait_ms: int = MAX_WAIT_MS
    ) -> Fetched:
        """Fetch from `offset` on, at least one batch if there is any; wait for one up to `max_wait_ms`.

        Raises OffsetOutOfRange for an offset that the log does not have, CorruptMessage for a wrong CRC, and any other
        error that lasts longer than 30 s of retries.
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
        """Fetch several partitions, in this order; once `max_bytes` are reached, the last ones get no batches."""
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
        """Return True if the log does not hold an offset any more, or not yet."""
        # ListOffsets is not sufficient: with time-based offsets, the first record may be far after the last deleted
        # one, although nothing between them was lost.
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
        passing = Passing(aborted)
        return Fetched(
            offset,
            [batch for batch in batches if passing.passes(batch)],
            max(next_offset, offset),
            data.last_stable_offset if committed and data.last_stable_offset >= 0 else data.high_watermark,
            data.log_start_offset,
            passing,
        )
