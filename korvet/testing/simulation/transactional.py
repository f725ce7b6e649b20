"""Transactional clients of simulated brokers, of both versions of the protocol, and a reader of committed records.

Writers write to several partitions in a transaction. Movers read the records of a group, and write each of them to
another topic, with the offsets behind them in the transaction. Both abort some transactions and die amid others. Some
of their requests arrive late, when the client has repeated them already.

Version 1 of the protocol does not distinguish a late request from one of the next transaction, in Apache Kafka neither.
Clients of version 1 therefore ask for a new epoch before the next transaction if an answer is missing. Version 2 raises
the epoch with each transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Self

import trio
from attrs import define, field

from korvet.protocol.errors import ErrorCode, error_for
from korvet.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from korvet.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from korvet.protocol.messages.end_txn import EndTxnRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from korvet.storage.interface import TopicPartition
from korvet.testing.records import Producer as ProducerFields
from korvet.testing.records import Record, batch
from korvet.testing.simulation.clients import (
    FAILURES,
    OF_TRANSACTIONAL_ID,
    REQUEST_LIMIT_S,
    TOPIC,
    VERSIONS,
    Client,
    Fetched,
    Member,
    Refused,
    Talk,
    check,
    fetch,
    reason,
)
from korvet.testing.simulation.history import named
from korvet.testing.transaction_history import Began, Ended, Outcome, Polled, Sent, Took

OUTPUT = "invoices"
#: The versions of requests that a client of each version of the protocol sends.
PROTOCOLS: Mapping[int, Mapping[str, int]] = {
    1: {**VERSIONS, "Produce": 11, "TxnOffsetCommit": 4, "EndTxn": 4},
    2: VERSIONS,
}
# Probabilities that a client dies, does something else first, and gives a request up, at each step; and that it aborts.
DIES, DAWDLES, GIVES_UP, ABORTS = 0.01, 0.2, 0.05, 0.15
MOST_VALUES = 8
# Another client has the transactional id, or the coordinator has aborted the transaction.
FENCED = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
# The group has another generation, or the store may have lost records.
ABORTABLE = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
)

Values = Mapping[TopicPartition, Sequence[str]]


class Over(OSError):  # noqa: N818  it is planned
    """The life of a producer has ended: it died, or was fenced."""


class GaveUp(OSError):  # noqa: N818  it is planned
    """The client does not wait for an answer. The request arrives later."""


@define(eq=False)
class TransactionSettings:
    """The settings of a transactional client."""

    transactional_id: str
    partitions: int
    version: int  # of the protocol: 1 or 2
    timeout_s: float
    gives_up: float = GIVES_UP  # the probability for a request


@define(eq=False)
class Transactions(Client):
    """The transactions of a client. One is open at most; each has a name, with which its values begin.

    A context manager, which closes the connections.
    """

    settings: TransactionSettings
    is_stopping: bool = False  # then all transactions are committed
    _number: int = 0
    _producer: tuple[int, int] = (-1, -1)
    _sequences: dict[TopicPartition, int] = field(factory=dict)
    _is_sure: bool = True  # no request is left that may arrive late
    _talks: dict[str, Talk] = field(factory=dict)

    @property
    def transaction(self) -> str:
        """The name of the transaction."""
        return f"{self.name}.{self._number}"

    # --- Lives ------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin a transaction, with a new epoch if that is necessary."""
        if self._producer[0] < 0 or (self.settings.version == 1 and not self._is_sure):
            await self._initialize()
        self._number += 1
        self.history.transact(Began(self.transaction, self.settings.transactional_id))
        # Until the client asks for something else.
        self.history.transact(Ended(self.transaction, Outcome.ABORTED))

    async def _initialize(self) -> None:
        """Get a producer id and epoch, which fence earlier clients. A client that continues can be fenced itself."""
        while True:
            producer_id, epoch = self._producer
            request = InitProducerIdRequest(
                transactional_id=self.settings.transactional_id,
                transaction_timeout_ms=int(self.settings.timeout_s * 1000),
                producer_id=producer_id,
                producer_epoch=epoch,
            )
            self._is_sure = True
            answer = await self._until_done(self._of_coordinator, request, lambda answer: [answer.error_code])
            self._use(answer)
            # A request that names the epoch before the present one is answered like the first one with it. If it
            # arrives between the end of a transaction and the repeated EndTxn, the state is Empty again, and version 1
            # refuses EndTxn. One more epoch fences it.
            if self._is_sure:
                return

    def _use(self, answer: Any) -> None:
        self._producer = answer.producer_id, answer.producer_epoch
        self._sequences = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close_all()

    async def _close_all(self) -> None:
        while self._talks:
            await self.close(self._talks.popitem()[1])

    def _die(self, why: str) -> Over:
        """Forget the producer. The next transaction begins with another one."""
        self._producer = -1, -1
        return Over(why)

    def _some_time_s(self) -> float:
        """Return a time that is mostly short, and at most that in which the transaction times out."""
        return self.chance.random() ** 4 * self.settings.timeout_s

    def rolls(self, probability: float) -> bool:
        """Return True with that probability, unless the client is stopping."""
        return self.chance.random() < probability and not self.is_stopping

    # --- Steps ------------------------------------------------------------------------------------------

    async def send(self, values: Values) -> None:
        """Send the values. Raises Over, and Refused if the transaction has to be aborted."""
        producer_id, epoch = self._producer
        for tp, sent in values.items():
            for value in sent:
                self.history.transact(Sent(self.transaction, tp, value))
        if self.settings.version == 1:
            topic = AddPartitionsToTxnTopic(name=OUTPUT, partitions=[tp.partition for tp in values])
            added = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.settings.transactional_id,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[topic],
            )
            await self._until_done(self._of_coordinator, added, added_codes)
        data = []
        for tp, sent in values.items():
            first = self._sequences.get(tp, 0)
            self._sequences[tp] = first + len(sent)
            records = batch(
                [Record(value.encode()) for value in sent],
                producer=ProducerFields(producer_id, epoch, first),
                is_transactional=True,
            )
            data.append(PartitionProduceData(index=tp.partition, records=[records.buffer]))
        produce = ProduceRequest(
            transactional_id=self.settings.transactional_id,
            acks=-1,
            timeout_ms=int(REQUEST_LIMIT_S * 1000),
            topic_data=[TopicProduceData(name=OUTPUT, partition_data=data)],
        )
        answer = await self._until_done(self._of_any, produce, produced_codes)
        for each in answer.responses[0].partition_responses:
            tp = TopicPartition(OUTPUT, each.index)
            self.history.acknowledge(self.name, tp, each.base_offset, values[tp])

    async def stage(
        self, group: str, generation: int, member_id: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Put offsets into the transaction. Raises Over, and Refused if the transaction has to be aborted."""
        producer_id, epoch = self._producer
        if self.settings.version == 1:
            added = AddOffsetsToTxnRequest(
                transactional_id=self.settings.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=group,
            )
            await self._until_done(self._of_coordinator, added, lambda answer: [answer.error_code])
        partitions = [
            TxnOffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=offset, committed_metadata=""
            )
            for tp, offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self.settings.transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=generation,
            member_id=member_id,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
        )
        await self._until_done(lambda: self._of_group(group), request, staged_codes)

    async def end(self, *, is_commit: bool) -> None:
        """End the transaction. Raises Over."""
        producer_id, epoch = self._producer
        request = EndTxnRequest(
            transactional_id=self.settings.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=is_commit,
        )
        if is_commit:
            self.history.transact(Ended(self.transaction, Outcome.UNKNOWN))
        answer = await self._until_done(self._of_coordinator, request, lambda answer: [answer.error_code])
        if is_commit:
            self.history.transact(Ended(self.transaction, Outcome.COMMITTED))
        self.history.note(self.name, f"{'committed' if is_commit else 'aborted'} {self.transaction}")
        if self.settings.version > 1:
            self._use(answer)

    @asynccontextmanager
    async def abort_if_refused(self) -> AsyncIterator[None]:
        """Abort the transaction if the block raises Refused, which is raised again."""
        try:
            yield
        except Refused:
            await self.end(is_commit=False)
            raise

    # --- Requests ---------------------------------------------------------------------------------------

    async def _until_done(
        self,
        connected: Callable[[], Awaitable[Talk]],
        request: Any,
        codes: Callable[[Any], Iterable[int]],
    ) -> Any:
        """Send a request until it has succeeded. Raises Over, and Refused if the transaction has to be aborted."""
        if self.rolls(DIES):
            raise self._die("dies")
        if self.rolls(DAWDLES):
            await trio.sleep(self._some_time_s())
        while True:
            try:
                talk = await connected()
                answer = await self._ask(talk, request)
                for code in codes(answer):
                    check(code)
            except FAILURES as error:
                self.history.note(self.name, f"{type(request).__name__}: {reason(error)}")
                if isinstance(error, Refused):
                    self._judge(error)
                else:
                    self._is_sure = False
                await self._close_all()
                await trio.sleep(self.chance.random() * self.pause_s)
            else:
                return answer

    async def _ask(self, talk: Talk, request: Any) -> Any:
        if not self.rolls(self.settings.gives_up):
            return await talk.ask(request)
        talk.stream.lag(self._some_time_s())
        await talk.send(request)
        raise GaveUp("gives up")

    def _judge(self, error: Refused) -> None:
        """Raise Over or the error, unless the request may be repeated."""
        if error.code in FENCED:
            raise self._die(str(error))
        if error.code in ABORTABLE:
            self._is_sure = False  # a partition may lack a sequence
            raise error
        if not error_for(error.code).retriable:
            self.history.fail(f"{self.name}: {error.code.name} in {self.transaction}")

    async def _of_coordinator(self) -> Talk:
        key = self.settings.transactional_id
        return await self._kept("coordinator", lambda: self.connect_coordinator(key, OF_TRANSACTIONAL_ID))

    async def _of_group(self, group: str) -> Talk:
        return await self._kept("group", lambda: self.connect_coordinator(group))

    async def _of_any(self) -> Talk:
        return await self._kept("any", lambda: self.connect(self.chance.choice(self.brokers)))

    async def _kept(self, purpose: str, connect: Callable[[], Awaitable[Talk]]) -> Talk:
        if purpose not in self._talks:
            self._talks[purpose] = talk = await connect()
            talk.versions = PROTOCOLS[self.settings.version]
        return self._talks[purpose]


def added_codes(answer: Any) -> list[int]:
    """Return the error codes of a response to AddPartitionsToTxn."""
    (topic,) = answer.results_by_topic_v3_and_below
    return [each.partition_error_code for each in topic.results_by_partition]


def produced_codes(answer: Any) -> list[int]:
    """Return the error codes of a response to Produce."""
    return [each.error_code for each in answer.responses[0].partition_responses]


def staged_codes(answer: Any) -> list[int]:
    """Return the error codes of a response to TxnOffsetCommit."""
    return [each.error_code for each in answer.topics[0].partitions]


# --- Clients -------------------------------------------------------------------------------------------------


@define(eq=False)
class Writer:
    """Writes transactions to several partitions, until it leaves or its transactions are stopping."""

    transactions: Transactions
    between_s: float  # the mean time between two transactions
    _is_leaving: bool = False

    def leave(self) -> None:
        self._is_leaving = True

    async def run(self) -> None:
        async with self.transactions:
            await self._run()

    async def _run(self) -> None:
        transactions = self.transactions
        while not (self._is_leaving or transactions.is_stopping):
            try:
                await trio.sleep(transactions.chance.expovariate(1 / self.between_s))
                await self._write()
            except FAILURES as error:
                transactions.history.note(transactions.name, reason(error))

    async def _write(self) -> None:
        transactions, chance = self.transactions, self.transactions.chance
        await transactions.begin()
        numbers = count()
        async with transactions.abort_if_refused():
            for _ in range(chance.randint(1, 3)):
                values: dict[TopicPartition, list[str]] = {}
                for _ in range(chance.randint(1, MOST_VALUES)):
                    tp = TopicPartition(OUTPUT, chance.randrange(transactions.settings.partitions))
                    values.setdefault(tp, []).append(f"{transactions.transaction}:{next(numbers)}")
                await transactions.send(values)
        await transactions.end(is_commit=not transactions.rolls(ABORTS))


@define(eq=False)
class Mover:
    """Lets a member of a group write what it reads to other partitions, in transactions with its offsets."""

    transactions: Transactions
    member: Member

    def __attrs_post_init__(self) -> None:
        self.member.process = self._move

    def leave(self) -> None:
        self.member.is_leaving = True

    async def run(self) -> None:
        async with self.transactions:
            await self.member.run()

    async def _move(self, new: Mapping[TopicPartition, Fetched]) -> bool:
        member, transactions = self.member, self.transactions
        await transactions.begin()
        values: dict[TopicPartition, list[str]] = {}
        for tp, found in new.items():
            for offset, value in found.records:
                transactions.history.transact(Took(transactions.transaction, tp, offset, value))
                output = TopicPartition(
                    OUTPUT, transactions.chance.randrange(transactions.settings.partitions)
                )
                values.setdefault(output, []).append(f"{transactions.transaction}:{value}")
        offsets = {tp: found.end for tp, found in new.items()}
        async with transactions.abort_if_refused():
            await transactions.send(values)
            await transactions.stage(member.settings.group, *member.membership, offsets)
        if transactions.rolls(ABORTS):
            await transactions.end(is_commit=False)
            return False
        member.note_commit(offsets, is_known=False)
        try:
            await transactions.end(is_commit=True)
        except Over:
            # The transaction may be committed: a late InitProducerId without an epoch can fence the repeated EndTxn.
            member.positions = {}
            raise
        member.note_commit(offsets, is_known=True)
        return True


@define(eq=False)
class Reader(Client):
    """Reads committed records of all output partitions from their beginning, until it is cancelled."""

    partitions: int
    wait_s: float
    positions: dict[TopicPartition, int] = field(init=False)
    _stable: dict[TopicPartition, int] = field(factory=dict)  # the last stable offsets of the last response

    def __attrs_post_init__(self) -> None:
        self.positions = {TopicPartition(OUTPUT, number): 0 for number in range(self.partitions)}

    async def run(self) -> None:
        """See the class."""
        while True:
            try:
                talk = await self.connect(self.chance.choice(self.brokers))
                try:
                    for _ in range(self.chance.randrange(1, 30)):
                        await self._read(talk)
                finally:
                    await self.close(talk)
            except FAILURES as error:
                self.history.note(self.name, reason(error))
                await trio.sleep(self.chance.random() * self.pause_s)

    async def _read(self, talk: Talk) -> None:
        for tp, found in (await fetch(talk, self.positions, self.wait_s, is_committed=True)).items():
            self.history.read(self.name, tp, found.records)
            for offset, value in found.records:
                self.history.transact(Polled(self.name, tp, offset, value))
            stable = found.last_stable_offset
            if not max(found.end, self._stable.get(tp, 0)) <= stable:
                self.history.fail(
                    f"{self.name} got {named([tp])} up to {found.end}, with the last stable offset {stable}"
                    f" after {self._stable.get(tp, 0)}"
                )
            self.positions[tp], self._stable[tp] = found.end, stable
