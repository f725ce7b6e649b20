"""Producer ids and sequences: a batch that is sent again is stored once, and in its order (KIP-98).

A call takes a producer from a pool and returns it when all batches are acknowledged. A broker remembers every producer
id for a day, so a program must not use a new one for each call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import define, field

from korvet.client.cluster import TRANSACTION, Cluster, raise_for
from korvet.client.model import TopicPartition
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.protocol.record_batch import Producing

SEQUENCES = 2**31
# An idle producer id is dropped after this time, long before brokers forget it.
IDLE_LIMIT_S = 600.0


@define(eq=False)
class Producer:
    """A producer id, and the next sequence of each partition. At most one batch of a partition is in flight."""

    producer_id: int
    epoch: int
    _sequences: dict[TopicPartition, int] = field(factory=dict, init=False)
    idle_since_s: float = field(default=0.0, init=False)
    is_forgotten: bool = field(default=False, init=False)  # by a broker that has lost its data

    def next(self, tp: TopicPartition) -> Producing:
        """Return the producer fields of the partition's next batch. They change when a batch is acknowledged."""
        return Producing(self.producer_id, self.epoch, self._sequences.get(tp, 0))

    def acknowledged(self, tp: TopicPartition, count: int) -> None:
        """Count the records of a batch that is stored."""
        self._sequences[tp] = (self._sequences.get(tp, 0) + count) % SEQUENCES


async def new_producer(
    cluster: Cluster,
    transactional_id: str | None = None,
    timeout_ms: int = 60_000,
    after: Producer | None = None,
) -> Producer:
    """Request a producer id, a new one or that of a transactional id, whose open transaction is aborted.

    With `after`, the next epoch of that producer (KIP-360). Raises KafkaError; ProducerFenced if another producer has
    taken the transactional id meanwhile; UnsupportedVersion if the brokers have no idempotent producers.
    """
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    if after is not None:
        request.producer_id, request.producer_epoch = after.producer_id, after.epoch
    about = "InitProducerId" if transactional_id is None else f"transactional id {transactional_id}"

    async def attempt() -> InitProducerIdResponse:
        if transactional_id is None:
            answer = await cluster.ask_any(request, InitProducerIdResponse)
        else:
            coordinator = await cluster.coordinator(transactional_id, TRANSACTION)
            answer = await cluster.request(coordinator, request, InitProducerIdResponse)
        raise_for(answer.error_code, about)
        return answer

    answer = await cluster.retrying(attempt)
    return Producer(answer.producer_id, answer.producer_epoch)


@define(eq=False)
class ProducerPool:
    """Idle producers by cluster id. Several threads may use it."""

    _idle: dict[str | None, list[Producer]] = field(factory=dict, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    @asynccontextmanager
    async def producer(self, cluster: Cluster) -> AsyncIterator[Producer]:
        """Yield a producer for the block. After an exception it is not used again: a batch may be outstanding."""
        producer = self._taken(cluster.cluster_id) or await new_producer(cluster)
        yield producer
        if producer.is_forgotten:
            return
        producer.idle_since_s = time.monotonic()
        with self._lock:
            self._idle.setdefault(cluster.cluster_id, []).append(producer)

    def _taken(self, cluster_id: str | None) -> Producer | None:
        with self._lock:
            idle = self._idle.get(cluster_id, [])
            producer = idle.pop() if idle else None
            if producer is None or time.monotonic() - producer.idle_since_s < IDLE_LIMIT_S:
                return producer
            idle.clear()  # the others have been idle for longer
            return None
