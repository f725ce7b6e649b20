"""ListTransactions: v0-2.

Behaviour: the response has the transactional ids that this broker coordinates and the client may describe, with their
states. Filters are combined: states (unknown ones are returned as such), producer ids, and from v1 the time since the
begin of the transaction: an id without one has been idle since 1970, as in Kafka. From v2 a regular expression selects
names, which it must match as a whole.

Errors: INVALID_REGULAR_EXPRESSION; COORDINATOR_NOT_AVAILABLE while the store is away.
"""

from __future__ import annotations

from collections.abc import Callable

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from korvet.protocol.patterns import compiled
from korvet.security.acls import Operation, ResourceType
from korvet.transactions.document import State, Transaction

# Kafka's states that no id of korvet is in; they are no unknown states.
KAFKAS_OTHER_STATES = frozenset({"Dead", "PrepareEpochFence"})
STATES = KAFKAS_OTHER_STATES | {state.value for state in State}


async def handle(
    broker: Broker, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in STATES]
    try:
        pattern = _pattern(request.transactional_id_pattern)

        def is_wanted(name: str) -> bool:
            return (pattern is None or pattern(name)) and broker.may(
                context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name
            )

        listed = await broker.transactions.listed(is_wanted)
    except KafkaError as error:
        return ListTransactionsResponse(error_code=coordinator_error(error).error_code)
    filters = _Filters(request, broker.clock())
    found: list[TransactionState] = []
    time_slices = TimeSlices()
    for name, transaction in listed:
        if filters.accept(transaction):
            found.append(_state(name, transaction))
        await time_slices.next()
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)


def _pattern(text: str | None) -> Callable[[str], bool] | None:
    """Return the pattern for names, or None if all are requested. Raises InvalidRegularExpression."""
    return compiled(text) if text else None


class _Filters:
    """The filters of a request by state, producer and time."""

    def __init__(self, request: ListTransactionsRequest, now_ms: int) -> None:
        self.states = frozenset(request.state_filters)
        self.producer_ids = frozenset(request.producer_id_filters)
        self.duration_ms = request.duration_filter
        self.now_ms = now_ms

    def accept(self, transaction: Transaction) -> bool:
        if self.producer_ids and transaction.producer_id not in self.producer_ids:
            return False
        if self.states and transaction.state.value not in self.states:
            return False
        return self.duration_ms < 0 or self.now_ms - transaction.started_ms > self.duration_ms


def _state(name: str, transaction: Transaction) -> TransactionState:
    return TransactionState(
        transactional_id=name,
        producer_id=transaction.producer_id,
        transaction_state=transaction.state.value,
    )
