"""Records and offsets of transactions: admit them to the transaction of their producer, and map its errors for clients.

Producers of `transaction.version` 1 have added partitions and groups to the transaction before (AddPartitionsToTxn,
AddOffsetsToTxn): the broker verifies that. For version 2, the broker adds them (KIP-890).

No version of Produce and TxnOffsetCommit knows PRODUCER_FENCED, and old versions of other APIs do not:
`fenced_as_epoch` maps it to INVALID_PRODUCER_EPOCH, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from korvet.broker.broker import Broker, coordinator_error, partition_of
from korvet.protocol.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTxnState,
    KafkaError,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    detached,
)
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.interface import Topic, TopicPartition, TransactionNumber
from korvet.transactions.document import Partition

# The values of `transaction.version` of a client, as the coordinator distinguishes them.
FIRST_VERSION = 1
SECOND_VERSION = 2


class Generation(Enum):
    """The abilities of a client of Produce or TxnOffsetCommit, by the version of the request."""

    FIRST = 1
    ABORTABLE = 2  # knows TRANSACTION_ABORTABLE
    ADDS = 3  # lets the broker add partitions and groups, and repeats after CONCURRENT_TRANSACTIONS

    @classmethod
    def of(cls, version: int, abortable_since: int, adds_since: int) -> Generation:
        """Return the generation of a version, given the first versions of the later ones."""
        if version >= adds_since:
            return cls.ADDS
        return cls.ABORTABLE if version >= abortable_since else cls.FIRST


def check_transactions_are_served(broker: Broker) -> None:
    """Raise TransactionalIdAuthorizationFailed on a store that does not serve transactions.

    It is the only error that ends `init_transactions` immediately in librdkafka as well as in Java's client, which
    retry other errors until a timeout.
    """
    if not broker.store.serves_transactions:
        raise TransactionalIdAuthorizationFailed("transactions are not served")


def check_transactional_id(transactional_id: str) -> None:
    """Raise InvalidRequest for the empty id."""
    if not transactional_id:
        raise InvalidRequest("a transactional id is not empty")


def fenced_as_epoch(error: KafkaError) -> KafkaError:
    """Map PRODUCER_FENCED to INVALID_PRODUCER_EPOCH. Return other errors unchanged."""
    return InvalidProducerEpoch(error.message) if isinstance(error, ProducerFenced) else error


def partition_in(topic: Topic, index: int) -> Partition:
    """Return a partition as transactions name it. Raises UnknownTopicOrPartition."""
    return Partition(*partition_of(topic, index), topic.topic_id)


async def number_of(
    broker: Broker,
    transactional_id: str,
    producer: tuple[int, int],
    generation: Generation,
    *,
    partitions: Collection[Partition] = (),
    groups: Collection[str] = (),
) -> TransactionNumber:
    """Return the number of the producer's transaction, which has these partitions and groups.

    Add them, or raise TransactionAbortable if they are not in the transaction, depending on the client's generation.
    Raises InvalidRequest for the empty transactional id.
    """
    check_transactional_id(transactional_id)
    if generation is Generation.ADDS:
        return await broker.transactions.add(
            transactional_id, *producer, partitions=partitions, groups=groups, version=SECOND_VERSION
        )
    return await broker.transactions.verify(transactional_id, *producer, partitions=partitions, groups=groups)


def commit_error(error: KafkaError, generation: Generation) -> KafkaError:
    """Return the error of a TxnOffsetCommit for an error of a coordinator or of storage."""
    if isinstance(error, TransactionAbortable) and generation is Generation.FIRST:
        return InvalidTxnState("The group is not in the transaction.")
    return fenced_as_epoch(coordinator_error(error))


# --- Produce -------------------------------------------------------------------------------------------------


Admitted = dict[TopicPartition, TransactionNumber]
Refused = dict[TopicPartition, KafkaError]


async def admit(
    broker: Broker,
    transactional_id: str,
    generation: Generation,
    batches: Mapping[TopicPartition, RecordBatch],
) -> tuple[Admitted, Refused]:
    """Return the transactions of transactional batches, which have one producer, and the errors of those refused."""
    first = next(iter(batches.values()))
    producer = first.producer_id, first.producer_epoch
    try:
        topics = {name: await broker.find_topic(name) for name in {tp.topic for tp in batches}}
        tps = {partition_in(topics[tp.topic], tp.partition): tp for tp in batches}
        number = await number_of(broker, transactional_id, producer, generation, partitions=tps)
    except TransactionAbortable as error:
        return await _admit_some(broker, transactional_id, producer, generation, tps, error)
    except KafkaError as error:
        return {}, dict.fromkeys(batches, produce_error(error, generation))
    return dict.fromkeys(batches, number), {}


async def _admit_some(
    broker: Broker,
    transactional_id: str,
    producer: tuple[int, int],
    generation: Generation,
    tps: Mapping[Partition, TopicPartition],
    error: TransactionAbortable,
) -> tuple[Admitted, Refused]:
    """Admit the batches whose partitions are in the transaction. The others get the error."""
    try:
        absent = await broker.transactions.absent(transactional_id, tps)
        present = {partition: tp for partition, tp in tps.items() if partition not in absent}
        refused = dict.fromkeys(
            (tps[each] for each in tps if each in absent), produce_error(error, generation)
        )
        if not present:
            return {}, refused
        number = await number_of(broker, transactional_id, producer, generation, partitions=present)
    except KafkaError as changed:
        return {}, dict.fromkeys(tps.values(), produce_error(changed, generation))
    return dict.fromkeys(present.values(), number), refused


def produce_error(error: KafkaError, generation: Generation) -> KafkaError:
    """Return the error of a Produce for an error of the coordinator."""
    error = detached(coordinator_error(error))
    if isinstance(error, TransactionAbortable) and generation is Generation.FIRST:
        return InvalidTxnState("The partition is not in the transaction.")
    if isinstance(error, NotCoordinator | CoordinatorNotAvailable):
        return _passing(error)
    return fenced_as_epoch(append_error(error, generation))


def append_error(error: KafkaError, generation: Generation) -> KafkaError:
    """Return the error of a Produce for an error of storage."""
    is_concurrent = isinstance(error, ConcurrentTransactions)
    return _passing(error) if is_concurrent and generation is not Generation.ADDS else error


def _passing(error: KafkaError) -> NotEnoughReplicas:
    # As in Kafka: clients of the first version repeat the request after this error, and do not refresh their metadata.
    return NotEnoughReplicas(f"The transaction cannot be verified now: {error.error_code.name}.")
