"""A Hypothesis state machine: random steps on a store and on a model of it, which have to agree after each step.

Two brokers use the store, if it supports that. After every change of the catalogue, the machine waits until the other
broker has received it. The `Environment` adds other events: lost connections, flushed scripts, entries that other
programs write or trim.

Hypothesis' steps are synchronous. So each run of steps has Trio in a separate thread, in which both brokers run from
the first step to the last.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import trio
from attrs import define, field
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from korvet.protocol.compression import Codec
from korvet.protocol.errors import (
    IllegalGeneration,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from korvet.protocol.record import Headers
from korvet.storage.interface import (
    AppendResult,
    Document,
    DocumentConflict,
    EpochEnd,
    OffsetAndMetadata,
    OffsetMapping,
    ReadRequest,
    ReadResult,
    Storage,
    TopicPartition,
)
from korvet.storage.producer_state import MAX_SEQUENCE, next_sequence
from korvet.testing.contract.base import eventually
from korvet.testing.environment import Environment
from korvet.testing.model import GroupModel, PartitionModel, StoreModel
from korvet.testing.records import T0, Producer, Record, batch, batches_of, records_of

Answer = TypeVar("Answer")

STEP_LIMIT_S = 30
TOPICS = ["a", "b"]  # the first always exists
GROUPS = ["billing", "shipping"]
KEYS = ["x", "y"]

timestamps: st.SearchStrategy[int] = st.one_of(
    st.integers(T0 - 50, T0 + 50), st.sampled_from([-1, 0, 4_102_444_800_000])
)
headers: st.SearchStrategy[Headers] = st.lists(
    st.tuples(st.sampled_from(["", "a", "key", "ü"]), st.none() | st.binary(max_size=3)), max_size=3
).map(tuple)
payloads: st.SearchStrategy[bytes | None] = (
    st.none() | st.binary(max_size=4) | st.sampled_from([b"x" * 100, b"y" * 5000])
)
records: st.SearchStrategy[Record] = st.builds(Record, payloads, payloads, timestamps, headers)
record_lists: st.SearchStrategy[list[Record]] = st.lists(records, min_size=1, max_size=6)
# A position in a list whose length is unknown when values are drawn.
places: st.SearchStrategy[int] = st.integers(0, 2**16)
brokers: st.SearchStrategy[int] = st.integers(0, 1)
producers: st.SearchStrategy[int] = st.integers(1, 2)
partitions: st.SearchStrategy[int] = places


def run_storage_machine(
    make_environment: Callable[[], Environment], *, max_examples: int = 50, steps: int = 50
) -> None:
    """Compare the backend with the model. `make_environment` must create a new, empty store for each call.

    The steps are the same in every run: what fails once fails again. Raises the assertion that failed, with the
    shortest run of steps that leads there.
    """

    class Machine(StorageMachine):
        def __init__(self) -> None:
            super().__init__(make_environment())

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@define
class BrokersInThread:
    """A thread that runs Trio, with two open storages."""

    environment: Environment
    storages: list[Storage] = field(factory=list)
    _thread: threading.Thread = field(init=False)
    _token: trio.lowlevel.TrioToken = field(init=False)
    _end: trio.Event = field(init=False)
    _ready: threading.Event = field(factory=threading.Event)
    _failure: BaseException | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="storage under test")
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def call(self, function: Callable[..., Awaitable[Answer]], *args: Any) -> Answer:
        """Run `function` in the Trio thread. Return its result, or raise its exception."""

        async def in_time() -> Answer:
            with trio.fail_after(STEP_LIMIT_S):
                return await function(*args)

        return trio.from_thread.run(in_time, trio_token=self._token)

    def stop(self) -> None:
        if self._thread.is_alive():
            trio.from_thread.run_sync(self._end.set, trio_token=self._token)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as failure:  # noqa: BLE001  raised again in the waiting thread
            self._failure = failure
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        async with AsyncExitStack() as opened:
            for _ in range(2):
                self.storages.append(await opened.enter_async_context(self.environment.open()))
            self._ready.set()
            await self._end.wait()


class StorageMachine(RuleBasedStateMachine):
    """The steps. Each acts on one of the brokers and on the model."""

    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self.environment = environment
        self.model: StoreModel = StoreModel()
        self.brokers: BrokersInThread = BrokersInThread(environment)
        self.brokers.start()

    def teardown(self) -> None:
        try:
            for broker in range(2):
                for partition in range(len(self.model.logs)):
                    self.read_to_log_end(broker, partition)
                self.check_groups(broker)
        finally:
            self.brokers.stop()

    def storage(self, broker: int) -> Storage:
        return self.brokers.storages[broker]

    def pick(self, partition: int) -> tuple[TopicPartition, PartitionModel]:
        """Return one of the existing partitions."""
        tp = sorted(self.model.logs)[partition % len(self.model.logs)]
        return tp, self.model.logs[tp]

    # --- Topics -----------------------------------------------------------------------------------------

    @initialize(broker=brokers)
    def create_first_topic(self, broker: int) -> None:
        self.create("a", broker, 2)

    @precondition(lambda self: "b" not in self.model.topics)
    @rule(broker=brokers, count=st.integers(1, 3))
    def create_second_topic(self, broker: int, count: int) -> None:
        self.create("b", broker, count)

    @precondition(lambda self: "b" in self.model.topics)
    @rule(broker=brokers)
    def delete_second_topic(self, broker: int) -> None:
        self.delete("b", broker)

    @rule(deleter=brokers, creator=brokers, count=st.integers(1, 3))
    def recreate_first_topic(self, deleter: int, creator: int, count: int) -> None:
        self.delete("a", deleter)
        self.create("a", creator, count)

    @rule(broker=brokers, name=st.sampled_from(TOPICS))
    def add_partition(self, broker: int, name: str) -> None:
        topic = self.model.topics.get(name)
        if topic is None or topic.partitions == 3:
            return

        async def alter() -> None:
            altered = await self.storage(broker).alter_topic(topic, partitions=topic.partitions + 1)
            new = TopicPartition(name, topic.partitions)
            self.model.put_topic(altered, (await self.storage(broker).latest(new)).log_start_offset)

        self.brokers.call(alter)
        self.wait_until_topics_are_seen()

    def create(self, name: str, broker: int, count: int) -> None:
        create_topic = self.storage(broker).create_topic
        topic = self.brokers.call(create_topic, name, count, self.environment.settings)

        bounds = self.brokers.call(self.storage(broker).latest, TopicPartition(name, 0))

        assert topic.topic_id not in self.model.ids
        assert bounds.log_start_offset == bounds.high_watermark
        assert topic.config.mapping is OffsetMapping.TIMESTAMP or bounds.high_watermark == 0
        self.model.put_topic(topic, bounds.log_start_offset)
        self.wait_until_topics_are_seen()

    def delete(self, name: str, broker: int) -> None:
        self.brokers.call(self.storage(broker).delete_topic, self.model.topics[name])
        self.model.delete_topic(name)
        self.wait_until_topics_are_seen()

    def wait_until_topics_are_seen(self) -> None:
        for storage in self.brokers.storages:
            self.brokers.call(eventually, storage.topics, self.model.topics)

    @precondition(lambda self: "b" not in self.model.topics)
    @rule(broker=brokers)
    def use_missing_topic(self, broker: int) -> None:
        tp = TopicPartition("b", 0)
        results = self.brokers.call(self.storage(broker).append, {tp: batch([Record()])})

        assert isinstance(results[tp], UnknownTopicOrPartition)
        assert isinstance(self.brokers.call(self.read_one, broker, tp, 0, 1000), UnknownTopicOrPartition)

    # --- Appending --------------------------------------------------------------------------------------

    @rule(broker=brokers, partition=partitions, appended=record_lists, codec=st.sampled_from(Codec))
    def append(self, broker: int, partition: int, appended: list[Record], codec: Codec) -> None:
        self.append_all(broker, {partition: (appended, None)}, codec)

    @rule(broker=brokers, appended=st.dictionaries(st.integers(0, 4), record_lists, min_size=2))
    def append_to_several(self, broker: int, appended: dict[int, list[Record]]) -> None:
        self.append_all(broker, {partition: (each, None) for partition, each in appended.items()})

    @rule(
        broker=brokers,
        partition=partitions,
        appended=record_lists,
        producer_id=producers,
        epoch=st.integers(0, 2),
        sequence=st.sampled_from([0, 0, 1, 5, MAX_SEQUENCE - 2]),
    )
    def append_with_producer(
        self,
        broker: int,
        partition: int,
        appended: list[Record],
        producer_id: int,
        epoch: int,
        sequence: int,
    ) -> None:
        self.append_all(broker, {partition: (appended, Producer(producer_id, epoch, sequence))})

    @rule(broker=brokers, partition=partitions, appended=record_lists, producer_id=producers)
    def append_next_sequence(
        self, broker: int, partition: int, appended: list[Record], producer_id: int
    ) -> None:
        known = self.pick(partition)[1].producers.producers.get(producer_id)
        if known is not None:
            sequence = next_sequence(known.batches[-1].last_sequence)
            self.append_all(broker, {partition: (appended, Producer(producer_id, known.epoch, sequence))})

    @rule(broker=brokers, partition=partitions, producer_id=producers, place=places)
    def append_duplicate(self, broker: int, partition: int, producer_id: int, place: int) -> None:
        known = self.pick(partition)[1].producers.producers.get(producer_id)
        if known is not None:
            earlier = known.batches[place % len(known.batches)]
            count = (earlier.last_sequence - earlier.first_sequence) % (MAX_SEQUENCE + 1) + 1
            again = Producer(producer_id, known.epoch, earlier.first_sequence)
            self.append_all(broker, {partition: ([Record()] * count, again)})

    def append_all(
        self,
        broker: int,
        appended: dict[int, tuple[list[Record], Producer | None]],
        codec: Codec = Codec.NONE,
    ) -> None:
        by_tp = {self.pick(partition)[0]: each for partition, each in appended.items()}

        async def append() -> dict[TopicPartition, AppendResult | KafkaError]:
            """Append as a client does: send a batch again after KafkaStorageError."""
            results: dict[TopicPartition, AppendResult | KafkaError] = {}
            while missing := by_tp.keys() - results.keys():
                batches = {tp: batch(by_tp[tp][0], codec=codec, producer=by_tp[tp][1]) for tp in missing}
                answers = await self.storage(broker).append(batches)
                assert missing == answers.keys()
                results |= {
                    tp: each for tp, each in answers.items() if not isinstance(each, KafkaStorageError)
                }
                await trio.lowlevel.checkpoint()
            return results

        for tp, result in self.brokers.call(append).items():
            self.note_append(self.model.logs[tp], *by_tp[tp], result)

    def note_append(
        self,
        log: PartitionModel,
        appended: list[Record],
        who: Producer | None,
        result: AppendResult | KafkaError,
    ) -> None:
        expected = log.expect(len(appended), who)
        if isinstance(expected, KafkaError):
            assert type(result) is type(expected)
        elif expected is not None:
            assert AppendResult(expected.base_offset, -1, log.log_start_offset, duplicate=True) == result
        else:
            assert isinstance(result, AppendResult)
            assert log.may_begin_at(result.base_offset)
            assert AppendResult(result.base_offset, -1, log.log_start_offset) == result
            log.append(appended, result.base_offset, who)

    # --- Reading ----------------------------------------------------------------------------------------

    @rule(
        broker=brokers, partition=partitions, place=places, max_bytes=st.sampled_from([1, 200, 7000, 10**6])
    )
    def read(self, broker: int, partition: int, place: int, max_bytes: int) -> None:
        _, log = self.pick(partition)
        self.read_at(broker, partition, offset_in(log, place), max_bytes)

    @rule(broker=brokers, partition=partitions, beyond=st.integers(1, 3))
    def read_out_of_range(self, broker: int, partition: int, beyond: int) -> None:
        tp, log = self.pick(partition)
        for offset in (log.next_offset + beyond, log.trimmed_before - beyond):
            result = self.brokers.call(self.read_one, broker, tp, offset, 1000)

            assert isinstance(result, OffsetOutOfRange)

    @rule(broker=brokers, partition=partitions)
    def read_to_log_end(self, broker: int, partition: int) -> None:
        _, log = self.pick(partition)
        position = log.log_start_offset
        while position < log.next_offset:
            position = self.read_at(broker, partition, position, 2000)
        self.check_bounds(broker, partition)

    async def read_one(
        self, broker: int, tp: TopicPartition, offset: int, max_bytes: int
    ) -> ReadResult | KafkaError:
        request = {tp: ReadRequest(offset, max_bytes)}
        return (await self.storage(broker).read(request, max_bytes=max_bytes))[tp]

    def read_at(self, broker: int, partition: int, offset: int, max_bytes: int) -> int:
        """Read and compare. Return the next offset to read."""
        tp, log = self.pick(partition)
        result = self.brokers.call(self.read_one, broker, tp, offset, max_bytes)
        wanted = [record for record in log.records if record.offset >= offset]

        assert isinstance(result, ReadResult)
        found = records_of(result, offset)
        assert wanted[: len(found)] == found
        assert bool(found) == bool(wanted)
        assert log.bounds == result.offsets
        assert result.size <= max_bytes or len(batches_of(result)) == 1
        return found[-1].offset + 1 if found else log.next_offset

    @rule(broker=brokers, partition=partitions)
    def check_bounds(self, broker: int, partition: int) -> None:
        tp, log = self.pick(partition)

        assert log.bounds == self.brokers.call(self.storage(broker).latest, tp)
        assert log.earliest == self.brokers.call(self.storage(broker).earliest, tp)
        assert EpochEnd(0, log.next_offset) == self.brokers.call(self.storage(broker).epoch_end, tp, 0)

    @rule(broker=brokers, partition=partitions, timestamp=timestamps)
    def seek_by_time(self, broker: int, partition: int, timestamp: int) -> None:
        tp, log = self.pick(partition)

        assert self.brokers.call(self.storage(broker).seek_ts, tp, timestamp) == log.seek_ts(timestamp)
        assert self.brokers.call(self.storage(broker).seek_max_ts, tp) == log.seek_max_ts()

    @rule(broker=brokers, partition=partitions, place=places, back=st.integers(0, 2))
    def truncate(self, broker: int, partition: int, place: int, back: int) -> None:
        tp, log = self.pick(partition)
        offset = offset_in(log, place)
        truncate_before = self.storage(broker).truncate_before

        assert offset == self.brokers.call(truncate_before, tp, offset)
        log.truncate_before(offset)
        assert offset == self.brokers.call(truncate_before, tp, offset - back)

    # --- Groups and documents ---------------------------------------------------------------------------

    @rule(
        broker=brokers,
        group_id=st.sampled_from(GROUPS),
        partition=partitions,
        place=places,
        generation_id=st.sampled_from([-1, -1, 1, 2, 3]),
    )
    def commit(self, broker: int, group_id: str, partition: int, place: int, generation_id: int) -> None:
        tp, log = self.pick(partition)
        committed = OffsetAndMetadata(offset_in(log, place), 0, f"at {place}")

        async def ack() -> KafkaError | None:
            storage = self.storage(broker)
            return (await storage.ack(group_id, {tp: committed}, generation_id=generation_id))[tp]

        result = self.brokers.call(ack)
        fenced = not self.model.commit(group_id, tp, committed, generation_id)
        assert isinstance(result, IllegalGeneration) if fenced else result is None

    @rule(broker=brokers, group_id=st.sampled_from(GROUPS), some=st.none() | st.sets(st.integers(0, 4)))
    def forget(self, broker: int, group_id: str, some: set[int] | None) -> None:
        tps = None if some is None else {self.pick(partition)[0] for partition in some}
        self.brokers.call(self.storage(broker).forget, group_id, tps)
        self.model.forget(group_id, tps)

    @rule(broker=brokers)
    def check_groups(self, broker: int) -> None:
        committed = self.storage(broker).committed
        for group_id in GROUPS:
            expected = self.model.groups.get(group_id, GroupModel()).offsets

            assert expected == self.brokers.call(committed, group_id)
            assert expected == self.brokers.call(committed, group_id, list(self.model.logs))

    @rule(
        broker=brokers,
        key=st.sampled_from(KEYS),
        value=st.none() | st.binary(max_size=3),
        stale=st.sampled_from([0, 0, 0, 1]),
    )
    def save(self, broker: int, key: str, value: bytes | None, stale: int) -> None:
        _, version = self.model.documents.get(key, (b"", 0))

        async def save() -> int | None:
            try:
                return await self.storage(broker).save("k", key, value, expected_version=version + stale)
            except DocumentConflict:
                return None

        result = self.brokers.call(save)
        if stale:
            assert result is None
        elif value is None:
            self.model.documents.pop(key, None)
        else:
            assert version + 1 == result
            self.model.documents[key] = value, version + 1

    @rule(broker=brokers, key=st.sampled_from(KEYS))
    def load(self, broker: int, key: str) -> None:
        expected = self.model.documents.get(key)
        found = self.brokers.call(self.storage(broker).load, "k", key)

        assert (None if expected is None else Document(*expected)) == found

    # --- Events of the environment ----------------------------------------------------------------------

    @precondition(lambda self: self.environment.disturbances())
    @rule(broker=brokers, place=places)
    def disturb(self, broker: int, place: int) -> None:
        disturbances = self.environment.disturbances()
        name = sorted(disturbances)[place % len(disturbances)]
        self.brokers.call(disturbances[name], self.storage(broker))

    @precondition(lambda self: self.environment.has_plain_writers)
    @rule(partition=partitions, value=st.binary(max_size=4))
    def write_by_hand(self, partition: int, value: bytes) -> None:
        tp, log = self.pick(partition)
        log.add([self.brokers.call(self.environment.write_by_hand, tp, value)])

    @precondition(lambda self: self.environment.has_plain_writers)
    @rule(partition=partitions, place=places)
    def trim_by_hand(self, partition: int, place: int) -> None:
        tp, log = self.pick(partition)
        if log.batch_starts:
            offset = log.batch_starts[place % len(log.batch_starts)]
            self.brokers.call(self.environment.trim_by_hand, tp, offset)
            log.trim_by_hand(offset)


def offset_in(log: PartitionModel, place: int) -> int:
    """Return an offset that can be read: that of a record, the start, or the end."""
    offsets = [log.log_start_offset, *(record.offset for record in log.readable), log.next_offset]
    return offsets[place % len(offsets)]
