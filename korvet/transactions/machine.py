"""The state machine of a transactional id: events become decisions; callers pass the time.

`decide` takes the stored state and an event. It returns a Decision, with the state to be saved before the answer is
sent, or raises the KafkaError that answers the request and changes nothing. A decision is valid only for the state that
it was made from: if another process has saved the document meanwhile, the caller decides again.

The rules are those of Apache Kafka (TransactionCoordinator, TransactionMetadata) with KIP-360, KIP-588 and KIP-890, as
version 4.4.0 answers (tests/transactions/apache_kafka.txt). `version` 1 is the protocol before KIP-890 part 2. With
version 2, each end of a transaction raises the producer's epoch, which fences records that the network has delayed.

There are four differences from Kafka. PrepareEpochFence is no state: a fence is one save, of PrepareAbort with the
raised epoch. A commit that arrives after the transaction timed out is PRODUCER_FENCED, as Kafka decides since
KAFKA-20785, and not INVALID_TXN_STATE, which ends Kafka Streams. A producer that asks with its last epoch gets the
stored answer also if the epochs are exhausted, where Kafka answers UNKNOWN_SERVER_ERROR, or PRODUCER_FENCED if it asks
again.
"""

from __future__ import annotations

from attrs import evolve, frozen

from korvet.protocol.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
)
from korvet.transactions.document import NO_EPOCH, NO_ID, NO_TIME, Partition, State, Transaction

# The first epoch that no transaction raises: the next one begins with another producer id. One epoch remains for the
# markers, so that they fence the producer.
EXHAUSTED_EPOCH = 2**15 - 2

COMPLETED = frozenset((State.COMPLETE_COMMIT, State.COMPLETE_ABORT))


class ProducerIdNeeded(Exception):  # noqa: N818  an outcome that the caller plans for
    """The event needs an unused producer id: decide again with `fresh_id`."""


# --- Events ----------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Init:
    """InitProducerId. `expected` has the id and epoch of a producer that goes on (KIP-360)."""

    timeout_ms: int
    expected: tuple[int, int] | None = None


@frozen(kw_only=True)
class Add:
    """Add partitions and groups to the transaction, and begin it if none is open."""

    producer_id: int
    producer_epoch: int
    partitions: frozenset[Partition] = frozenset()
    groups: frozenset[str] = frozenset()
    version: int = 1
    server: str = ""


@frozen(kw_only=True)
class Verify:
    """Check that partitions and groups are in the transaction."""

    producer_id: int
    producer_epoch: int
    partitions: frozenset[Partition] = frozenset()
    groups: frozenset[str] = frozenset()


@frozen(kw_only=True)
class End:
    """EndTxn. `server` is the present incarnation of the store, or None if no acknowledged record can be lost.

    `can_abort` is true if the client understands TRANSACTION_ABORTABLE.
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    version: int = 1
    can_abort: bool = True
    server: str | None = None


@frozen
class TimeOut:
    """The transaction may have timed out."""


@frozen
class Complete:
    """All markers of the transaction with that number are written."""

    number: int


@frozen
class TakeOver:
    """Another coordinator has loaded the document."""


Event = Init | Add | Verify | End | TimeOut | Complete | TakeOver


@frozen
class Decision:
    """The state to be saved before the answer, unless it is the given one; and the answer.

    If `error` is set, it is the answer. Otherwise the client gets the producer id and epoch, if it asked for them.
    `States` sets `is_saved` to False if the state is the given one, which another process may have saved.
    """

    state: Transaction
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    error: type[KafkaError] | None = None
    is_saved: bool = True


# --- Decisions -------------------------------------------------------------------------------------------------


def decide(
    transaction: Transaction | None, event: Event, now_ms: int, *, fresh_id: int | None = None
) -> Decision:
    """Return the decision on an event in a state; None is an id without a document.

    Raises the KafkaError that refuses the event, and ProducerIdNeeded.
    """
    if isinstance(event, Init):
        return _initialize(transaction, event, now_ms, fresh_id)
    if transaction is None:
        raise InvalidProducerIdMapping
    match event:
        case Add():
            return _add(transaction, event, now_ms)
        case Verify():
            return _verify(transaction, event)
        case End():
            return _end(transaction, event, now_ms, fresh_id)
        case TimeOut():
            return _time_out(transaction, now_ms, fresh_id)
        case Complete():
            return _complete(transaction, event, now_ms)
        case TakeOver():
            raised = transaction.coordinator_epoch + 1
            return Decision(evolve(transaction, coordinator_epoch=raised))


def missing(
    transaction: Transaction, partitions: frozenset[Partition], groups: frozenset[str] = frozenset()
) -> frozenset[Partition | str]:
    """Return those of the partitions and groups that are not in the ongoing transaction."""
    if transaction.state is not State.ONGOING:
        return partitions | groups
    return (partitions - transaction.partitions) | (groups - transaction.groups)


def _is_exhausted(epoch: int) -> bool:
    return epoch >= EXHAUSTED_EPOCH


def _fresh(fresh_id: int | None) -> int:
    if fresh_id is None:
        raise ProducerIdNeeded
    return fresh_id


# --- InitProducerId --------------------------------------------------------------------------------------------


def _initialize(transaction: Transaction | None, event: Init, now_ms: int, fresh_id: int | None) -> Decision:
    if transaction is None:
        state = Transaction(
            state=State.EMPTY,
            producer_id=_fresh(fresh_id),
            producer_epoch=0,
            timeout_ms=event.timeout_ms,
            updated_ms=now_ms,
        )
        return Decision(state, state.producer_id, state.producer_epoch)
    if transaction.is_prepared:
        raise ConcurrentTransactions
    if event.expected is not None and not _is_known(transaction, *event.expected):
        raise ProducerFenced
    if transaction.state is State.ONGOING:
        # The client asks again, and gets the epoch after the one that fences here.
        return Decision(_fenced(transaction, now_ms, fresh_id), error=ConcurrentTransactions)
    successor = _successor(transaction, event.expected, fresh_id)
    state = evolve(
        successor,
        state=State.EMPTY,
        timeout_ms=event.timeout_ms,
        partitions=frozenset(),
        groups=frozenset(),
        started_ms=NO_TIME,
        updated_ms=now_ms,
    )
    return Decision(state, state.producer_id, state.producer_epoch)


def _is_known(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return True if the id is the present one, or the previous one with the epoch that has exhausted it."""
    return producer_id == transaction.producer_id or (
        producer_id == transaction.previous_id and _is_exhausted(epoch)
    )


def _successor(
    transaction: Transaction, expected: tuple[int, int] | None, fresh_id: int | None
) -> Transaction:
    """Return the state with the next producer epoch. Raises ProducerFenced for an unexpected one."""
    present = (transaction.producer_id, transaction.producer_epoch)
    if expected is not None and expected != present:
        if expected[1] == transaction.last_epoch:
            return transaction  # the answer to an earlier request was lost
        raise ProducerFenced
    last_epoch = NO_EPOCH if expected is None else transaction.producer_epoch
    if not _is_exhausted(transaction.producer_epoch):
        raised = transaction.producer_epoch + 1
        return evolve(transaction, producer_epoch=raised, last_epoch=last_epoch, previous_id=NO_ID)
    previous_id = NO_ID if expected is None else transaction.producer_id
    return evolve(
        transaction,
        producer_id=_fresh(fresh_id),
        producer_epoch=0,
        last_epoch=last_epoch,
        previous_id=previous_id,
    )


# --- Adding and verifying --------------------------------------------------------------------------------------


def _check(transaction: Transaction, producer_id: int, epoch: int) -> None:
    if producer_id != transaction.producer_id:
        raise InvalidProducerIdMapping
    if epoch != transaction.producer_epoch:
        raise ProducerFenced


def _add(transaction: Transaction, event: Add, now_ms: int) -> Decision:
    # Before the other checks: Prepare* may have raised the epoch, or is about to replace the id, of the same client.
    if transaction.is_prepared:
        raise ConcurrentTransactions
    _check(transaction, event.producer_id, event.producer_epoch)
    if transaction.state is State.ONGOING:
        if not missing(transaction, event.partitions, event.groups):
            return Decision(transaction)
        begun = transaction
    else:
        begun = evolve(
            transaction,
            state=State.ONGOING,
            number=transaction.number + 1,
            version=event.version,
            previous_id=NO_ID,
            partitions=frozenset(),
            groups=frozenset(),
            started_ms=now_ms,
            server=event.server,
        )
    return Decision(
        evolve(
            begun,
            partitions=begun.partitions | event.partitions,
            groups=begun.groups | event.groups,
            updated_ms=now_ms,
        )
    )


def _verify(transaction: Transaction, event: Verify) -> Decision:
    _check(transaction, event.producer_id, event.producer_epoch)
    if transaction.is_prepared:
        raise ConcurrentTransactions
    if missing(transaction, event.partitions, event.groups):
        raise TransactionAbortable
    return Decision(transaction)


# --- The end ---------------------------------------------------------------------------------------------------


def _end(transaction: Transaction, event: End, now_ms: int, fresh_id: int | None) -> Decision:
    if event.version < 2:
        return _end_1(transaction, event, now_ms, fresh_id)
    return _end_2(transaction, event, now_ms, fresh_id)


def _end_1(transaction: Transaction, event: End, now_ms: int, fresh_id: int | None) -> Decision:
    """Decide on an EndTxn of version 1, which does not raise the epoch."""
    _check(transaction, event.producer_id, event.producer_epoch)
    if transaction.is_prepared:
        raise ConcurrentTransactions
    if transaction.state is State.ONGOING:
        return _prepared(transaction, event, now_ms, fresh_id)
    if transaction.state is _completed(event):
        return _repeated(transaction)
    raise InvalidTxnState


def _end_2(transaction: Transaction, event: End, now_ms: int, fresh_id: int | None) -> Decision:
    """Decide on an EndTxn of version 2. A client that lost the answer repeats it with the epoch before."""
    if transaction.is_prepared:
        raise ConcurrentTransactions
    if transaction.state in COMPLETED and _is_repeated(transaction, event):
        if transaction.state is _completed(event):
            return _repeated(transaction)
        # See the module: a commit after the coordinator has aborted.
        raise ProducerFenced if event.is_commit else InvalidTxnState
    _check(transaction, event.producer_id, event.producer_epoch)
    if transaction.state is State.ONGOING or not event.is_commit:
        return _prepared(transaction, event, now_ms, fresh_id)
    raise InvalidTxnState


def _completed(event: End) -> State:
    return State.COMPLETE_COMMIT if event.is_commit else State.COMPLETE_ABORT


def _is_repeated(transaction: Transaction, event: End) -> bool:
    if event.producer_id == transaction.producer_id:
        return event.producer_epoch + 1 == transaction.producer_epoch
    return event.producer_id == transaction.previous_id and _is_exhausted(event.producer_epoch)


def _repeated(transaction: Transaction) -> Decision:
    return Decision(transaction, transaction.producer_id, transaction.producer_epoch)


def _prepared(transaction: Transaction, event: End, now_ms: int, fresh_id: int | None) -> Decision:
    if event.is_commit and event.server not in (None, transaction.server):
        # The store went back since the transaction began: records of it may be lost.
        if event.can_abort:
            raise TransactionAbortable
        return Decision(_fenced(transaction, now_ms, fresh_id), error=ProducerFenced)
    state = evolve(
        _begun_empty(transaction, now_ms),
        state=State.PREPARE_COMMIT if event.is_commit else State.PREPARE_ABORT,
        version=event.version,
        updated_ms=now_ms,
    )
    if event.version >= 2:
        state = _raised(state, fresh_id)
    if state.next_id != NO_ID:
        return Decision(state, state.next_id, 0)
    return Decision(state, state.producer_id, state.producer_epoch)


def _begun_empty(transaction: Transaction, now_ms: int) -> Transaction:
    """Return the state with a transaction: a new one without partitions if none is ongoing."""
    if transaction.state is State.ONGOING:
        return transaction
    return evolve(
        transaction,
        number=transaction.number + 1,
        previous_id=NO_ID,
        partitions=frozenset(),
        groups=frozenset(),
        started_ms=now_ms,
    )


def _raised(transaction: Transaction, fresh_id: int | None) -> Transaction:
    """Raise the epoch, with which the markers are written. The last one is followed by another producer id."""
    return evolve(
        transaction,
        producer_epoch=transaction.producer_epoch + 1,
        last_epoch=transaction.producer_epoch,
        next_id=_fresh(fresh_id) if _is_exhausted(transaction.producer_epoch) else NO_ID,
    )


def _fenced(transaction: Transaction, now_ms: int, fresh_id: int | None) -> Transaction:
    """Abort the ongoing transaction with a raised epoch, which fences its producer."""
    state = evolve(transaction, state=State.PREPARE_ABORT, version=2, updated_ms=now_ms)
    return _raised(state, fresh_id)


def _time_out(transaction: Transaction, now_ms: int, fresh_id: int | None) -> Decision:
    if transaction.state is State.ONGOING and now_ms >= transaction.ends_ms:
        return Decision(_fenced(transaction, now_ms, fresh_id))
    return Decision(transaction)


def _complete(transaction: Transaction, event: Complete, now_ms: int) -> Decision:
    if not transaction.is_prepared or event.number != transaction.number:
        return Decision(transaction)
    is_commit = transaction.state is State.PREPARE_COMMIT
    state = evolve(
        transaction,
        state=State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT,
        partitions=frozenset(),
        groups=frozenset(),
        updated_ms=now_ms,
    )
    if transaction.next_id != NO_ID:
        state = evolve(
            state,
            producer_id=transaction.next_id,
            producer_epoch=0,
            previous_id=transaction.producer_id,
            next_id=NO_ID,
        )
    return Decision(state)
