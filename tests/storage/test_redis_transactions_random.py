"""Random batches and markers in Redis, compared step by step with memory, which applies the pure rules."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import evolve

from korvet.protocol.errors import KafkaError
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.interface import (
    AppendResult,
    AppendResults,
    Marker,
    Storage,
    TopicPartition,
    TransactionNumber,
    TransactionResult,
)
from korvet.storage.memory import MemoryStorage
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.contract.transactions import YOUNG, committed_in, read_committed
from korvet.testing.records import Producer, Record, batch, read, records_of
from tests.servers import VALKEY, RedisServer, on

pytestmark = [pytest.mark.servers, on(VALKEY)]

TP = TopicPartition("orders", 0)
PRODUCERS = [7, 8, YOUNG]
STEPS = 120


class Steps:
    """Random steps of some producers: mostly what a client would do, and sometimes what it must not."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.numbers = dict.fromkeys(PRODUCERS, 1)
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.value = 0

    def near(self, number: int) -> int:
        """Return the number itself, or sometimes one beside it."""
        return max(0, number + self.chance.choice([0] * 8 + [-1, 1]))

    def batch(self, *, is_transactional: bool) -> tuple[RecordBatch, TransactionNumber | None]:
        producer_id = self.chance.choice(PRODUCERS)
        records = [Record(b"%d" % (self.value + index), b"k%d" % (index % 5)) for index in range(2)]
        self.value += 2
        sequence = self.chance.choice([self.sequences[producer_id]] * 8 + [0, self.value])
        producer = Producer(producer_id, self.near(self.epochs[producer_id]), sequence)
        if not is_transactional:
            return batch(records, producer=producer), None
        number = TransactionNumber(self.chance.choice([1, 1, 2]), self.near(self.numbers[producer_id]))
        return batch(records, producer=producer, is_transactional=True), number

    def marker(self) -> Marker:
        producer_id = self.chance.choice(PRODUCERS)
        version = self.chance.choice([1, 2])
        return Marker(
            producer_id,
            self.near(self.epochs[producer_id] + (version == 2)),
            self.chance.choice([0] * 9 + [1]),
            self.chance.choice(list(TransactionResult)),
            self.chance.choice([self.near(self.numbers[producer_id])] * 9 + [-1]),
            version,
        )

    def note_batch(self, sent: RecordBatch, result: AppendResult | KafkaError) -> None:
        if isinstance(result, AppendResult):
            self.epochs[sent.producer_id] = max(self.epochs[sent.producer_id], sent.producer_epoch)
            self.sequences[sent.producer_id] = sent.last_sequence + 1

    def note_marker(self, marker: Marker, result: AppendResult | KafkaError) -> None:
        if isinstance(result, AppendResult):
            raised = marker.producer_epoch > self.epochs[marker.producer_id]
            self.epochs[marker.producer_id] = max(self.epochs[marker.producer_id], marker.producer_epoch)
            self.numbers[marker.producer_id] += 1
            if raised:
                self.sequences[marker.producer_id] = 0


def normal(results: AppendResults, offset: Callable[[int], int]) -> Any:
    """Return what two stores have to answer alike, with offsets counted from the log's beginning."""
    (result,) = results.values()
    if isinstance(result, KafkaError):
        return type(result)
    return result.duplicate, offset(result.base_offset)


async def content(storage: Storage, start: int, offset: Callable[[int], int]) -> Any:
    bounds = await storage.latest(TP)
    everything = await read(storage, TP, start)
    committed = await read_committed(storage, TP, start)
    producers = [evolve(each, last_timestamp=0) for each in await storage.active_producers(TP)]
    return (
        [
            offset(each)
            for each in (bounds.log_start_offset, bounds.last_stable_offset, bounds.high_watermark)
        ],
        [(offset(each.offset), each.value) for each in records_of(everything, start)],
        committed_in(committed, start),
        sorted((each.producer_id, offset(each.first_offset)) for each in committed.aborted),
        [evolve(each, current_txn_start_offset=min(0, each.current_txn_start_offset)) for each in producers],
    )


@pytest.mark.parametrize("layout", ["record", "batch"])
@pytest.mark.parametrize("seed", range(10))
async def test_random_transactions_match_those_in_memory(
    redis_server: RedisServer, layout: str, seed: int
) -> None:
    steps = Steps(seed)
    memory = MemoryStorage()
    settings = {"offset.mapping": "dense", "storage.layout": layout, "cleanup.policy": "compact"}
    settings["min.cleanable.dirty.ratio"] = "0"
    async with open_redis_storage(redis_server.url) as redis:
        stores: list[Storage] = [memory, redis]
        for store in stores:
            own = settings if store is redis else settings | {"storage.layout": "batch"}
            own = own if store is redis else {name: own[name] for name in own if name != "storage.layout"}
            await store.create_topic("orders", 1, own)
        start = 0
        for number in range(STEPS):
            kind = steps.chance.choices(
                ["transactional", "plain", "marker", "together", "truncate", "compact"],
                [50, 8, 25, 10, 2, 3],
            )[0]
            answers: list[Any]
            if kind in ("transactional", "plain"):
                sent, transaction = steps.batch(is_transactional=kind == "transactional")
                answers = [await append(store, sent, transaction) for store in stores]
                steps.note_batch(sent, answers[0][TP])
                answers = [normal(each, int) for each in answers]
            elif kind == "marker":
                marker = steps.marker()
                answers = [await store.write_markers({TP: marker}) for store in stores]
                steps.note_marker(marker, answers[0][TP])
                answers = [normal(each, int) for each in answers]
            elif kind == "together":
                several = [steps.batch(is_transactional=True) for _ in range(3)]
                ended = steps.marker()
                answers = [await together(store, several, ended) for store in stores]
                for store in stores:
                    # A batch that fails in one call with an earlier one is refused once more by Redis.
                    store.failed_sequences.clear()
            elif kind == "truncate":
                bounds = await memory.latest(TP)
                start = steps.chance.randint(bounds.log_start_offset, bounds.high_watermark)
                answers = [await store.truncate_before(TP, start) for store in stores]
            else:
                answers = [getattr(await store.compact(TP), "end", None) for store in stores]
            assert answers[0] == answers[1], (number, kind, answers)
            start = (await memory.latest(TP)).log_start_offset
            contents = [await content(store, start, int) for store in stores]
            assert contents[0] == contents[1], (number, kind)


async def append(storage: Storage, sent: RecordBatch, transaction: TransactionNumber | None) -> AppendResults:
    copy = RecordBatch(bytearray(sent.buffer))
    transactions = {} if transaction is None else {TP: transaction}
    return await storage.append({TP: copy}, transactions=transactions)


async def together(
    storage: Storage, several: list[tuple[RecordBatch, TransactionNumber | None]], ended: Marker
) -> list[Any]:
    """Append several batches and a marker that arrive together: Redis gets them in few calls."""
    results: list[Any] = [None] * (len(several) + 1)

    async def one(index: int) -> None:
        if index == len(several):
            results[index] = normal(await storage.write_markers({TP: ended}), int)
        else:
            results[index] = normal(await append(storage, *several[index]), int)

    async with trio.open_nursery() as nursery:
        for index in range(len(results)):
            nursery.start_soon(one, index)
            await trio.testing.wait_all_tasks_blocked(0.001)
    return results
