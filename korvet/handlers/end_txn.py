"""EndTxn: v0-5.

Behaviour: commit or abort the transaction of a transactional id. The response follows once the decision is saved; the
markers in partitions and the offsets of groups follow. WRITE on the transactional id is required.

Versions: PRODUCER_FENCED from v2, INVALID_PRODUCER_EPOCH before. TRANSACTION_ABORTABLE from v4. v5 is for
transaction.version 2: the end raises the producer's epoch, and the response has it, with a new producer id if the
epochs of the present one are exhausted.

Errors: INVALID_REQUEST for an empty id; INVALID_TXN_STATE; INVALID_PRODUCER_ID_MAPPING; NOT_COORDINATOR;
CONCURRENT_TRANSACTIONS while the transaction ends.
"""

from __future__ import annotations

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.broker.transactional import FIRST_VERSION, SECOND_VERSION, check_transactional_id, fenced_as_epoch
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from korvet.security.acls import Operation, ResourceType

FENCED_SINCE = 2  # the first version with PRODUCER_FENCED
ABORTABLE_SINCE = 4  # the first version with TRANSACTION_ABORTABLE
RAISES_SINCE = 5  # the first version of transaction.version 2


async def handle(broker: Broker, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    try:
        broker.authorize(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        check_transactional_id(request.transactional_id)
        producer_id, epoch = await broker.transactions.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            is_commit=request.committed,
            version=SECOND_VERSION if context.version >= RAISES_SINCE else FIRST_VERSION,
            can_abort=context.version >= ABORTABLE_SINCE,
        )
    except KafkaError as error:
        known = coordinator_error(error)
        if context.version < FENCED_SINCE:
            known = fenced_as_epoch(known)
        return EndTxnResponse(error_code=known.error_code)
    return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)
