"""Transactions: every API of producers, coordinators and tools, and what consumers read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from conformance import clock
from conformance.clock import HOUR_MS, T0
from conformance.scenario import scenario
from conformance.scenarios.asking import fetch
from conformance.scenarios.members import commit, committed
from conformance.scenarios.records import batch
from conformance.talk import Ended, Talk, newest
from korvet.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from korvet.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from korvet.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from korvet.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from korvet.protocol.messages.describe_transactions import DescribeTransactionsRequest
from korvet.protocol.messages.end_txn import EndTxnRequest
from korvet.protocol.messages.fetch import FetchRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.list_transactions import ListTransactionsRequest
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from korvet.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

# The first versions for brokers, of the second generation, and with the generation and member of a group.
BROKERS_SINCE, END_2, PRODUCE_2, COMMIT_2, MEMBERS_SINCE = 4, 5, 12, 5, 3
LATEST, MAX_TIMESTAMP = -1, -3
# A producer id that no broker has given out.
NOBODY = 2**40


@define
class Producer:
    """A producer with a transactional id, which knows the id and epoch that the broker has given it."""

    talk: Talk
    short: str = "x"
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(factory=dict)

    @property
    def transactional_id(self) -> str:
        return self.talk.name(self.short) if self.short else ""

    # Requests

    def initialization(
        self, *, timeout_ms: int = 60_000, expected: tuple[int, int] = (-1, -1)
    ) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )

    def addition(
        self, *partitions: tuple[str, int], epoch: int = 0, producer_id: int | None = None
    ) -> AddPartitionsToTxnRequest:
        """Add partitions, by short names, with an epoch relative to the known one."""
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id if producer_id is None else producer_id,
            v3_and_below_producer_epoch=self.epoch + epoch,
            v3_and_below_topics=asked(self.talk, partitions),
        )

    def group_addition(self, group: str = "g", *, epoch: int = 0) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch + epoch,
            group_id=self.talk.name(group) if group else "",
        )

    def batch(self, short: str, *values: bytes, partition: int = 0, epoch: int = 0) -> bytearray:
        sequence = self.sequences.get((short, partition), 0)
        producer = (self.producer_id, self.epoch + epoch, sequence)
        return batch(*values, producer=producer, is_transactional=True)

    def production(self, short: str, *values: bytes, partition: int = 0, epoch: int = 0) -> ProduceRequest:
        return production(
            self.talk,
            self.transactional_id,
            [(short, partition, self.batch(short, *values, partition=partition, epoch=epoch))],
        )

    def ending(
        self, *, commits: bool = True, epoch: int = 0, producer_id: int | None = None
    ) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=self.epoch + epoch,
            committed=commits,
        )

    def staging(
        self, short: str, offset: int, *, group: str = "g", partition: int = 0, epoch: int = 0, **member: Any
    ) -> TxnOffsetCommitRequest:
        data = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.talk.name(group) if group else "",
            producer_id=self.producer_id,
            producer_epoch=self.epoch + epoch,
            topics=[TxnOffsetCommitRequestTopic(name=self.talk.name(short), partitions=[data])],
            **member,
        )

    # What is not compared

    def initialize(self) -> None:
        """Get a producer id and an epoch, as soon as the broker gives them out."""

        def initialized() -> bool:
            answer = self.talk.tell(self.initialization())
            if answer.error_code:
                return False
            self.use(answer)
            return True

        self.talk.wait_until(initialized, "initialize a transactional id")

    def use(self, answer: Any) -> None:
        """Use the producer id and epoch of a response."""
        if not isinstance(answer, Ended) and answer.producer_epoch >= 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()

    def send(self, short: str, *values: bytes, partition: int = 0, version: int = PRODUCE_2) -> None:
        """Send values, after adding the partition if the version requires it."""
        if version < PRODUCE_2:
            self.until_added(self.addition((short, partition)))
        request = self.production(short, *values, partition=partition)
        self.talk.wait_until(
            lambda: _is_produced(self.talk.tell(request, version)), "append to a transaction"
        )
        known = self.sequences.get((short, partition), 0)
        self.sequences[short, partition] = known + len(values)

    def until_added(self, request: AddPartitionsToTxnRequest) -> None:
        self.talk.wait_until(lambda: _is_added(self.talk.tell(request, 3)), "add partitions")

    def end(self, *, commits: bool = True, version: int = END_2) -> None:
        """End the transaction, and wait until that is complete."""
        answer = self.talk.tell(self.ending(commits=commits), version)
        if version >= END_2:
            self.use(answer)
        self.settle()

    def settle(self) -> None:
        """Wait until no markers of the transaction are left to be written."""
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])

        def settled() -> bool:
            answer = self.talk.tell(request)
            state = answer.transaction_states[0].transaction_state
            return not state.startswith("Prepare")

        self.talk.wait_until(settled, "complete a transaction")


def _is_produced(answer: Any) -> bool:
    return not any(each.error_code for topic in answer.responses for each in topic.partition_responses)


def _is_added(answer: Any) -> bool:
    return not any(
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    )


def asked(talk: Talk, partitions: Iterable[tuple[str, int]]) -> list[AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for short, partition in partitions:
        topics.setdefault(short, []).append(partition)
    return [
        AddPartitionsToTxnTopic(name=short if short.startswith("__") else talk.name(short), partitions=found)
        for short, found in topics.items()
    ]


def production(
    talk: Talk, transactional_id: str | None, batches: Iterable[tuple[str, int, bytearray]]
) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for short, partition, data in batches:
        topic = topics.setdefault(short, TopicProduceData(name=talk.name(short), partition_data=[]))
        topic.partition_data.append(PartitionProduceData(index=partition, records=[data]))
    return ProduceRequest(
        transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=list(topics.values())
    )


def initialized(talk: Talk, short: str = "x") -> Producer:
    producer = Producer(talk, short)
    producer.initialize()
    return producer


def read(talk: Talk, label: str, short: str = "orders", *, partition: int = 0) -> None:
    """Fetch everything at both isolation levels."""
    talk.learn_end(short, partition)
    for level in (0, 1):
        request = fetch(talk, short, 0, partition=partition, isolation_level=level)
        talk.ask(request, label=f"{label}, isolation level {level}")


# --- InitProducerId ------------------------------------------------------------------------------------------


@scenario(InitProducerIdRequest)
def transactional_ids(talk: Talk, version: int) -> None:
    producer = Producer(talk)
    for label in ("the first time", "the second time"):
        producer.use(talk.ask(producer.initialization(), version, label))
    for timeout_ms in (0, -1, 900_000, 900_001):
        talk.ask(producer.initialization(timeout_ms=timeout_ms), version, f"a timeout of {timeout_ms} ms")
    talk.ask(Producer(talk, "").initialization(), version, "the empty id")
    if version >= 3:
        producer.initialize()
        known = producer.producer_id
        for label, expected in {
            "the present epoch": (known, producer.epoch),
            "that epoch again": (known, producer.epoch),
            "an earlier epoch": (known, producer.epoch - 1),
            "a later epoch": (known, producer.epoch + 7),
            "another producer": (NOBODY, producer.epoch),
            "only an epoch": (-1, 0),
            "only a producer": (known, -1),
        }.items():
            talk.ask(producer.initialization(expected=expected), version, label)
        unknown = Producer(talk, "y")
        talk.ask(unknown.initialization(expected=(NOBODY, 3)), version, "an id that nobody knows")


@scenario(InitProducerIdRequest)
def initialization_during_a_transaction(talk: Talk, version: int) -> None:
    talk.topic("orders")
    producer = initialized(talk)
    producer.send("orders", b"a")
    talk.ask(producer.initialization(), version, "an open transaction")
    producer.settle()
    talk.ask(producer.initialization(), version, "after it is aborted")
    talk.ask(producer.ending(), label="the fenced producer")
    read(talk, "then")


# --- AddPartitionsToTxn --------------------------------------------------------------------------------------


@scenario(AddPartitionsToTxnRequest, last=BROKERS_SINCE - 1)
def partitions(talk: Talk, version: int) -> None:
    talk.topic("orders", partitions=2)
    talk.topic("other")
    producer = initialized(talk)
    for label, request in {
        "an unknown topic": producer.addition(("orders", 0), ("missing", 0)),
        "an unknown partition": producer.addition(("orders", 0), ("orders", 7), ("other", 0)),
        "partition -1": producer.addition(("orders", -1)),
        "an internal topic": producer.addition(("__consumer_offsets", 0), ("orders", 0)),
        "an earlier epoch": producer.addition(("orders", 0), epoch=-1),
        "a later epoch": producer.addition(("orders", 0), epoch=1),
        "another producer": producer.addition(("orders", 0), producer_id=NOBODY),
        "an unknown id": Producer(talk, "y", NOBODY, 0).addition(("orders", 0)),
        "the empty id": Producer(talk, "", NOBODY, 0).addition(("orders", 0)),
        "nothing": producer.addition(),
    }.items():
        talk.ask(request, version, label)
    describe(talk, "after nothing")
    for label, added in {
        "one": [("orders", 0)],
        "it again, and others": [("orders", 0), ("orders", 1), ("other", 0)],
        "one twice": [("orders", 1), ("orders", 1)],
    }.items():
        talk.ask(producer.addition(*added), version, label)
    describe(talk, "in the end")


@scenario(AddPartitionsToTxnRequest, first=BROKERS_SINCE)
def partitions_of_several_transactions(talk: Talk, version: int) -> None:
    talk.topic("orders", partitions=2)
    producer, other = initialized(talk), initialized(talk, "y")
    producer.until_added(producer.addition(("orders", 0)))

    def entry(
        of: Producer, *added: tuple[str, int], verifies: bool = False, epoch: int = 0
    ) -> AddPartitionsToTxnTransaction:
        return AddPartitionsToTxnTransaction(
            transactional_id=of.transactional_id,
            producer_id=of.producer_id,
            producer_epoch=of.epoch + epoch,
            verify_only=verifies,
            topics=asked(talk, added),
        )

    both = ("orders", 0), ("orders", 1)
    for label, entries in {
        "verify one": [entry(producer, ("orders", 0), verifies=True)],
        "verify both": [entry(producer, *both, verifies=True)],
        "verify nothing": [entry(producer, verifies=True)],
        "verify without a transaction": [entry(other, ("orders", 0), verifies=True)],
        "verify with an earlier epoch": [entry(producer, ("orders", 0), verifies=True, epoch=-1)],
        "verify an unknown topic": [entry(producer, ("orders", 0), ("missing", 0), verifies=True)],
        "verify an unknown id": [entry(Producer(talk, "z", NOBODY, 0), ("orders", 0), verifies=True)],
        "verify the empty id": [entry(Producer(talk, "", NOBODY, 0), ("orders", 0), verifies=True)],
        "add to both": [entry(producer, *both), entry(other, ("orders", 1))],
        "add an unknown topic": [entry(producer, ("orders", 0), ("missing", 0))],
        "add with a later epoch": [entry(producer, ("orders", 0), epoch=1)],
        "add to the empty id": [entry(Producer(talk, "", NOBODY, 0), ("orders", 0))],
        "verify both again": [entry(producer, *both, verifies=True)],
    }.items():
        talk.ask(AddPartitionsToTxnRequest(transactions=entries), version, label)
    describe(talk, "in the end")


# --- Groups --------------------------------------------------------------------------------------------------


@scenario(AddOffsetsToTxnRequest)
def groups(talk: Talk, version: int) -> None:
    producer = initialized(talk)
    for label, request in {
        "an earlier epoch": producer.group_addition(epoch=-1),
        "a later epoch": producer.group_addition(epoch=1),
        "an unknown id": Producer(talk, "y", NOBODY, 0).group_addition(),
        "the empty id": Producer(talk, "", NOBODY, 0).group_addition(),
        "another producer": Producer(talk, "x", NOBODY, 0).group_addition(),
        "an unknown group": producer.group_addition(),
        "it again": producer.group_addition(),
        "the empty group": producer.group_addition(""),
    }.items():
        talk.ask(request, version, label)


@scenario(TxnOffsetCommitRequest)
def offsets_of_a_group(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=2)
    group = talk.name("g")
    talk.tell(commit(group, topic, 1))
    producer = initialized(talk)
    talk.ask(producer.staging("orders", 5), version, "not in the transaction")
    if version >= COMMIT_2:
        producer.end(commits=False)
    talk.tell(producer.group_addition(), 3)
    for label, request in {
        "in the transaction": producer.staging("orders", 5),
        "it again": producer.staging("orders", 6),
        "another partition": producer.staging("orders", 7, partition=1),
        "an unknown partition": producer.staging("orders", 7, partition=2),
        "an unknown topic": producer.staging("missing", 7),
        "an earlier epoch": producer.staging("orders", 8, epoch=-1),
        "a later epoch": producer.staging("orders", 8, epoch=1),
        "the empty group": producer.staging("orders", 8, group=""),
        "an unknown id": Producer(talk, "y", NOBODY, 0).staging("orders", 8),
        "the empty id": Producer(talk, "", NOBODY, 0).staging("orders", 8),
        "another producer": Producer(talk, "x", NOBODY, 0).staging("orders", 8),
    }.items():
        talk.ask(request, version, label)
    if version >= MEMBERS_SINCE:
        members: dict[str, dict[str, Any]] = {
            "a generation": {"generation_id": 1},
            "a member": {"member_id": "nobody"},
            "both": {"generation_id": 1, "member_id": "nobody"},
        }
        for label, member in members.items():
            talk.ask(producer.staging("orders", 9, **member), version, label)
        for other in ("new", "consumers"):
            talk.tell(producer.group_addition(other), 3)
        unknown = producer.staging("orders", 9, group="new", generation_id=1, member_id="nobody")
        talk.ask(unknown, version, "a generation of an unknown group")
        joining = ConsumerGroupHeartbeatRequest(
            group_id=talk.name("consumers"),
            member_id="consumer",
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=[talk.topic("others")],
            topic_partitions=[],
        )
        joined = talk.tell(joining)
        for label, epoch in {"an earlier member epoch": -1, "a later one": 1, "the member epoch": 0}.items():
            member = {"member_id": joined.member_id, "generation_id": joined.member_epoch + epoch}
            talk.ask(producer.staging("others", 9, group="consumers", **member), version, label)
    stable(talk, "before the end")
    producer.end(version=3 if version < COMMIT_2 else END_2)
    stable(talk, "after the end")


@scenario()
def offsets_of_an_aborted_transaction(talk: Talk, _version: int) -> None:
    topic = talk.topic("orders")
    talk.tell(commit(talk.name("g"), topic, 1))
    producer = initialized(talk)
    talk.ask(producer.staging("orders", 5))
    talk.ask(commit(talk.name("g"), topic, 3), label="a commit outside of the transaction")
    stable(talk, "before the end")
    producer.end(commits=False)
    stable(talk, "after the end")


@scenario()
def a_commit_outside_of_the_transaction(talk: Talk, _version: int) -> None:
    topic = talk.topic("orders")
    producer = initialized(talk)
    talk.ask(producer.staging("orders", 5))
    talk.ask(commit(talk.name("g"), topic, 3), label="a commit outside of the transaction")
    producer.end()
    stable(talk, "after the end")


def stable(talk: Talk, label: str) -> None:
    """Fetch the committed offsets of the group, all and only stable ones."""
    for requires in (False, True):
        request = committed(
            newest(OffsetFetchRequest), talk.name("g"), talk.name("orders"), partitions=(0, 1)
        )
        request.require_stable = requires
        talk.ask(request, label=f"{label}, {'stable' if requires else 'any'}")


# --- Produce -------------------------------------------------------------------------------------------------


@scenario(ProduceRequest)
def records_of_a_transaction(talk: Talk, version: int) -> None:
    talk.topic("orders", partitions=3)
    producer = initialized(talk)
    talk.ask(producer.production("orders", b"a", partition=1), version, "not in the transaction")
    producer.until_added(producer.addition(("orders", 0)))
    plain = batch(b"plain", producer=(producer.producer_id, producer.epoch, 1))
    # Kafka does not verify the id of a producer whose transaction is open in the partition.
    closed = ("orders", 2, producer.batch("orders", b"c", partition=2))
    both = [("orders", index, producer.batch("orders", b"b", partition=index)) for index in (0, 1)]
    foreign = batch(b"f", producer=(NOBODY, 0, 0), is_transactional=True)
    for label, request in {
        "no transactional id": production(talk, None, [both[0], ("orders", 1, batch(b"plain"))]),
        "two producers": production(talk, producer.transactional_id, [both[0], ("orders", 1, foreign)]),
        "another producer": production(talk, producer.transactional_id, [("orders", 0, foreign)]),
        "an unknown id": production(talk, talk.name("y"), [closed]),
        "the empty id": production(talk, "", [closed]),
        "an earlier epoch": producer.production("orders", b"e", epoch=-1),
        "a later epoch": producer.production("orders", b"e", epoch=1),
        "an unknown topic": production(
            talk, producer.transactional_id, [("missing", 0, producer.batch("missing", b"m"))]
        ),
        "a plain batch": production(talk, producer.transactional_id, [("orders", 0, batch(b"plain"))]),
    }.items():
        talk.ask(request, version, label)
    talk.ask(production(talk, producer.transactional_id, both), version, "both partitions")
    talk.ask(production(talk, producer.transactional_id, both), version, "both again")
    talk.ask(
        production(talk, producer.transactional_id, [("orders", 0, plain)]),
        version,
        "a plain one of the producer",
    )
    read(talk, "before the end")
    producer.end()
    talk.ask(producer.production("orders", b"late", epoch=-1), version, "a late batch")
    read(talk, "after the end")


# --- EndTxn --------------------------------------------------------------------------------------------------


@scenario(EndTxnRequest)
def ends(talk: Talk, version: int) -> None:
    talk.topic("orders")
    producer = initialized(talk)
    talk.ask(producer.ending(), version, "commit without a transaction")
    for commits in (True, False):
        name = "commit" if commits else "abort"
        producer.send("orders", b"a", version=PRODUCE_2 if version >= END_2 else 11)
        for label, request in {
            "an earlier epoch": producer.ending(commits=commits, epoch=-1),
            "a later epoch": producer.ending(commits=commits, epoch=1),
            "another producer": producer.ending(commits=commits, producer_id=NOBODY),
        }.items():
            talk.ask(request, version, f"{name}: {label}")
        requests = [producer.ending(commits=same == commits) for same in (True, False)]
        answer = talk.ask(requests[0 if commits else 1], version, name)
        producer.settle()
        talk.learn_end("orders")
        talk.ask(requests[0 if commits else 1], version, f"{name} again")
        talk.ask(requests[1 if commits else 0], version, f"{name}, and then the other")
        producer.settle()
        if version >= END_2:
            producer.use(answer)
        producer.initialize()
    talk.ask(Producer(talk, "y", NOBODY, 0).ending(), version, "an unknown id")
    talk.ask(Producer(talk, "", NOBODY, 0).ending(), version, "the empty id")
    read(talk, "in the end")


@scenario()
def an_abort_without_a_transaction(talk: Talk, _version: int) -> None:
    producer = initialized(talk)
    for label in ("the first time", "again"):
        producer.use(talk.ask(producer.ending(commits=False), END_2, label))
        producer.settle()
        describe(talk, label)


@scenario()
def ends_of_one_transaction_after_the_other(talk: Talk, _version: int) -> None:
    talk.topic("orders")
    producer = initialized(talk)
    for number, commits in enumerate((True, False, False, True)):
        producer.send("orders", b"%d" % number, b"more")
        producer.use(talk.ask(producer.ending(commits=commits)))
        producer.settle()
        talk.learn_end("orders")
    read(talk, "in the end")


# --- Tools ---------------------------------------------------------------------------------------------------


def describe(talk: Talk, label: str, *shorts: str) -> None:
    ids = [talk.name(short) for short in shorts or ("x",)]
    talk.ask(DescribeTransactionsRequest(transactional_ids=ids), label=f"{label}, described")


def marker(
    producer_id: int,
    epoch: int,
    topics: Iterable[tuple[str, list[int]]],
    *,
    commits: bool = False,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commits,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )


@scenario(WriteTxnMarkersRequest)
def markers(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=2)
    initialized(talk)
    producer = initialized(talk)
    here = [(topic, [0])]
    producer.send("orders", b"a")

    def ask(label: str, *written: WritableTxnMarker) -> None:
        talk.ask(WriteTxnMarkersRequest(markers=list(written)), version, label)
        talk.learn_end("orders")
        talk.learn_end("orders", 1)

    known = producer.producer_id
    ask("nothing")
    ask("no partitions", marker(known, producer.epoch, []))
    ask("an unknown topic", marker(known, producer.epoch, [(talk.name("missing"), [0]), (topic, [1, 7])]))
    ask("an earlier epoch", marker(known, producer.epoch - 1, here))
    if version >= 2:
        ask("the same epoch, version 2", marker(known, producer.epoch, here, transaction_version=2))
        ask("a later epoch, version 2", marker(known, producer.epoch + 1, here, transaction_version=2))
        ask("again, version 2", marker(known, producer.epoch + 1, here, transaction_version=2))
        ask("again, version 1", marker(known, producer.epoch + 1, here, transaction_version=1))
    else:
        ask("the same epoch", marker(known, producer.epoch, here))
        ask("again", marker(known, producer.epoch, here))
    ask("a later coordinator", marker(known, producer.epoch + 2, here, commits=True, coordinator_epoch=3))
    ask("an earlier coordinator", marker(known, producer.epoch + 2, here, coordinator_epoch=2))
    ask("a producer that nobody knows", marker(NOBODY, 0, here))
    read(talk, "in the end")


@scenario(DescribeProducersRequest)
def producers(talk: Talk, version: int) -> None:
    talk.topic("orders", partitions=2)
    producer = initialized(talk)

    def ask(label: str, *partitions: int, name: str = "orders") -> None:
        topic = TopicRequest(name=talk.name(name) if name else "", partition_indexes=list(partitions or (0,)))
        talk.ask(DescribeProducersRequest(topics=[topic]), version, label)

    ask("none")
    talk.fill("orders", batch(b"plain"))
    producer.send("orders", b"a")
    ask("an open transaction")
    producer.send("orders", b"b", b"c")
    ask("more of it", 0, 1, 0)
    producer.end()
    talk.learn_end("orders")
    ask("after the end")
    producer.send("orders", b"d")
    ask("the next one")
    ask("unknown partitions", 7, -1)
    ask("an unknown topic", name="missing")
    ask("a topic of no name", name="")


@scenario(DescribeTransactionsRequest)
def states(talk: Talk, version: int) -> None:
    talk.topic("orders", partitions=3)
    producer = initialized(talk)

    def ask(label: str, *ids: str) -> None:
        talk.ask(DescribeTransactionsRequest(transactional_ids=list(ids)), version, label)

    known = producer.transactional_id
    ask("empty", known)
    producer.send("orders", b"a", partition=2)
    producer.send("orders", b"a")
    ask("ongoing", known)
    producer.end()
    ask("committed", known)
    producer.send("orders", b"a")
    producer.end(commits=False)
    ask("aborted", known)
    ask("unknown", talk.name("y"))
    ask("several", talk.name("y"), known, "")
    ask("none")


@scenario(ListTransactionsRequest)
def lists(talk: Talk, version: int) -> None:
    talk.topic("orders")
    for short in ("idle", "open", "over"):
        producer = initialized(talk, short)
        if short != "idle":
            producer.send("orders", b"a")
        if short == "over":
            producer.end()

    def ask(label: str, **filters: Any) -> None:
        answer = talk.tell(ListTransactionsRequest(**filters), version)
        if isinstance(answer, Ended):
            talk.note(label, answer.how)
            return
        # Other scenarios' ids are in the response, too.
        own = [each for each in answer.transaction_states if each.transactional_id.startswith(talk.scope)]
        named = sorted(f"{each.transactional_id[9:]} {each.transaction_state}" for each in own)
        unknown = sorted(answer.unknown_state_filters)
        talk.note(label, f"{answer.error_code}, unknown {unknown}: {', '.join(named) or 'none'}")

    ask("all")
    for states in (
        ["Ongoing"],
        ["Empty", "Ongoing"],
        ["ongoing", "Dead"],
        ["nowhere"],
        ["PrepareEpochFence", "Empty"],
    ):
        ask(f"states {states}", state_filters=states)
    ask("a producer id", producer_id_filters=[NOBODY])
    if version >= 1:
        for duration in (-1, 0, 3_600_000):
            ask(f"for {duration} ms", duration_filter=duration)
    if version >= 2:
        for pattern in (
            None,
            "",
            ".*-o.*",
            "open",
            "[",
            "(?i).*-OPEN",
            "a**",
            "\\",
            ".*-(idle|over)$",
            "(?=x)",
            "[[:alnum:]]+-open",
        ):
            ask(f"pattern {pattern}", transactional_id_pattern=pattern)


# --- Consumers -----------------------------------------------------------------------------------------------


@scenario(FetchRequest)
def fetches(talk: Talk, version: int) -> None:
    talk.topic("orders")
    first, second = initialized(talk), initialized(talk, "y")
    talk.fill("orders", batch(b"before"))
    first.send("orders", b"a1", b"a2")
    second.send("orders", b"b1")
    talk.fill("orders", batch(b"between"))

    def ask(label: str, *offsets: int) -> None:
        for offset in offsets:
            for level in (0, 1):
                request = fetch(talk, "orders", offset, version=version, isolation_level=level)
                talk.ask(request, version, f"{label}, from {offset}, isolation level {level}")

    ask("two open", 0, 1, 3)
    second.end(commits=False)
    talk.learn_end("orders")
    ask("the later one aborted", 0)
    first.end()
    talk.learn_end("orders")
    ask("both ended", 0, 3, 4, 5, 6, 7)
    first.send("orders", b"c1")
    first.end(commits=False)
    talk.learn_end("orders")
    ask("three ended", 0, 3, 7)


@scenario(ListOffsetsRequest, first=2)
def offsets(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    producer = initialized(talk)

    def ask(label: str) -> None:
        talk.learn_end("orders")
        # Markers have the time of the broker's clock, which is after that of all records.
        for timestamp in (LATEST, -2, T0, T0 + HOUR_MS // 2, *((MAX_TIMESTAMP,) if version >= 7 else ())):
            for level in (0, 1):
                asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                request = ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=level,
                    topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
                )
                answer = talk.tell(request, version)
                found = answer.topics[0].partitions[0]
                number = talk.number("orders", found.offset)
                when = clock.formatted(timestamp) if timestamp > 0 else timestamp
                talk.note(f"{label}, {when}, isolation level {level}", f"{found.error_code} {number}")

    talk.fill("orders", batch(b"before"))
    producer.send("orders", b"a")
    ask("open")
    producer.end()
    ask("committed")
    producer.send("orders", b"b")
    producer.end(commits=False)
    ask("aborted")
