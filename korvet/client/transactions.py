"""List, describe and end transactions, for the command line (KIP-664), as kafka-transactions does.

A transaction hangs if a partition has an open one that no coordinator knows: the last stable offset stays where it is,
and consumers with `read_committed` wait forever. `find_hanging` finds them, `abort` ends them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from attrs import frozen

from korvet.client.client import Client
from korvet.client.cluster import error_about, raise_for, raise_worst
from korvet.client.connection import Address
from korvet.client.model import TopicPartition, by_topic
from korvet.protocol.errors import TransactionalIdNotFound
from korvet.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from korvet.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from korvet.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from korvet.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# The first versions of ListTransactions that filter by duration and by name.
FILTERS_DURATIONS = 1
FILTERS_NAMES = 2
NO_OFFSET = -1
# States in which a transaction is open, and its partitions are waiting for a marker.
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


@frozen
class ListedTransaction:
    """A transactional id in a list."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


@frozen
class Transaction:
    """A transactional id as its coordinator describes it. `started_ms` is the start of its last transaction, or -1."""

    transactional_id: str
    coordinator: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        """True while a coordinator will end the transaction."""
        return self.state in OPEN

    def open_ms(self, now_ms: int) -> int | None:
        """Return for how long the transaction is open, or None if none is."""
        return max(0, now_ms - self.started_ms) if self.is_open else None


@frozen
class ActiveProducer:
    """A producer that is active in a partition. `open_offset` is the first one of its open transaction, or -1."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    open_offset: int


@frozen
class OpenTransaction:
    """A transaction that a producer has open in a partition."""

    tp: TopicPartition
    producer: ActiveProducer

    def idle_ms(self, now_ms: int) -> int:
        """Return for how long nothing has happened in it."""
        return max(0, now_ms - self.producer.last_timestamp)


async def list_transactions(
    client: Client,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    duration_ms: int | None = None,
    pattern: str | None = None,
) -> list[ListedTransaction]:
    """Return the transactional ids of all brokers, sorted. `duration_ms` leaves out shorter open transactions.

    Raises UnsupportedVersion if a broker cannot filter by duration or pattern, and InvalidRegularExpression.
    """
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if duration_ms is None else duration_ms,
        transactional_id_pattern=pattern,
    )
    min_version = 0 if duration_ms is None else FILTERS_DURATIONS
    if pattern is not None:
        min_version = FILTERS_NAMES

    async def ask(node_id: int) -> ListTransactionsResponse:
        answer = await client.request(
            request, ListTransactionsResponse, node_id=node_id, min_version=min_version
        )
        raise_for(answer.error_code, f"the transactions of broker {node_id}")
        return answer

    found = []
    for node_id in list(client.brokers):
        answer = await client.retrying(partial(ask, node_id))
        found += [
            ListedTransaction(each.transactional_id, node_id, each.producer_id, each.transaction_state)
            for each in answer.transaction_states
        ]
    return sorted(found, key=lambda each: each.transactional_id)


async def describe_transaction(client: Client, transactional_id: str) -> Transaction:
    """Return one transactional id. Raises TransactionalIdNotFound."""

    async def ask() -> tuple[Address, TransactionState]:
        coordinator = await client.find_transaction_coordinator(transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = await client.request(request, DescribeTransactionsResponse, address=coordinator)
        (state,) = answer.transaction_states
        raise_for(state.error_code, f"transactional id {transactional_id}")
        return coordinator, state

    coordinator, state = await client.retrying(ask)
    return Transaction(
        transactional_id,
        str(coordinator),
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms,
        tuple(sorted(TopicPartition(topic.topic, p) for topic in state.topics for p in topic.partitions)),
    )


async def describe_producers(
    client: Client, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, list[ActiveProducer]]:
    """Return the active producers of partitions, from their leaders."""
    found: dict[TopicPartition, list[ActiveProducer]] = {}
    wanted = list(tps)

    async def ask(leader: Address, tps: list[TopicPartition]) -> None:
        request = DescribeProducersRequest(
            topics=[
                TopicRequest(name=name, partition_indexes=partitions)
                for name, partitions in by_topic(tps).items()
            ]
        )
        answer = await client.request(request, DescribeProducersResponse, address=leader)
        errors = []
        for topic in answer.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                if p.error_code:
                    errors.append(error_about(p.error_code, tp, p.error_message))
                    continue
                found[tp] = [
                    ActiveProducer(
                        each.producer_id,
                        each.producer_epoch,
                        each.coordinator_epoch,
                        each.last_sequence,
                        each.last_timestamp,
                        each.current_txn_start_offset,
                    )
                    for each in p.active_producers
                ]
        raise_worst(errors)

    await client.retrying(lambda: client.each_leader([tp for tp in wanted if tp not in found], ask))
    return {tp: found[tp] for tp in wanted}


async def open_transactions(client: Client, tps: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """Return the transactions that are open in partitions."""
    return [
        OpenTransaction(tp, producer)
        for tp, producers in (await describe_producers(client, tps)).items()
        for producer in producers
        if producer.open_offset != NO_OFFSET
    ]


async def find_hanging(
    client: Client, tps: Iterable[TopicPartition], *, longer_than_ms: int, now_ms: int
) -> list[OpenTransaction]:
    """Return the open transactions in which nothing happened for a time, and that no coordinator will end."""
    opened = await open_transactions(client, tps)
    idle = [each for each in opened if each.idle_ms(now_ms) > longer_than_ms]
    known = await known_transactions(client, {each.producer.producer_id for each in idle})
    hanging = await hanging_of(client, idle, known)
    return [each for each in idle if each in hanging]


async def hanging_of(
    client: Client, idle: Iterable[OpenTransaction], known: Mapping[int, Transaction]
) -> set[OpenTransaction]:
    """Return those that no coordinator will end. `known` is what coordinators have, read after they were seen open.

    The partitions are read once more, since a coordinator does not know a transaction that has ended in between.
    """
    suspects = {each for each in idle if not will_end(each, known.get(each.producer.producer_id))}
    return suspects & {*await open_transactions(client, {each.tp for each in suspects})}


async def known_transactions(client: Client, producer_ids: Collection[int]) -> dict[int, Transaction]:
    """Return the transactional ids that coordinators have, by their producer ids."""
    known: dict[int, Transaction] = {}
    if not producer_ids:  # no filter would list all
        return known
    for listed in await list_transactions(client, producer_ids=sorted(producer_ids)):
        try:
            known[listed.producer_id] = await describe_transaction(client, listed.transactional_id)
        except TransactionalIdNotFound:
            continue
    return known


def will_end(open_transaction: OpenTransaction, known: Transaction | None) -> bool:
    """Return True if a coordinator will end the transaction; `known` is what one has of its producer."""
    return known is not None and known.is_open and open_transaction.tp in known.partitions


async def abort(
    client: Client, tp: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Write the marker that aborts a producer's open transaction in a partition. Raises its KafkaError."""

    async def ask(leader: Address, _: list[TopicPartition]) -> None:
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    transaction_result=False,
                    topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
                    # A partition that has no marker yet says -1; 0 is the first epoch.
                    coordinator_epoch=max(coordinator_epoch, 0),
                )
            ]
        )
        answer = await client.request(request, WriteTxnMarkersResponse, address=leader)
        (marker,) = answer.markers
        (topic,) = marker.topics
        (partition,) = topic.partitions
        raise_for(partition.error_code, tp)

    await client.retrying(lambda: client.each_leader([tp], ask))
