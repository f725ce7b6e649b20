"""Open transactions as `korvet top` shows them: open, known to a coordinator, overdue, hanging."""

from __future__ import annotations

import pytest
from attrs import evolve

from korvet.client import open_client
from korvet.client.model import TopicPartition
from korvet.client.transactions import ActiveProducer, OpenTransaction, Transaction
from korvet.testing.broker import serving
from korvet.top.sampling import Sampler
from korvet.top.transactions import TransactionReader, shown
from korvet.transactions.states import TRANSACTION
from tests.handlers.transactional import TransactionalProducer

TP = TopicPartition("orders", 0)
MINUTE_MS = 60_000
OPEN = OpenTransaction(TP, ActiveProducer(7, 0, -1, 0, 0, 3))
KNOWN = Transaction("payer", "a:1", "Ongoing", 7, 0, MINUTE_MS, 0, (TP,))


async def test_open_transaction_hangs_once_no_coordinator_has_it_twice() -> None:
    async with serving() as broker:
        await broker.create_topic("orders", partitions=2)
        inner = broker.server.broker
        store = inner.transactions.storage
        producer = TransactionalProducer(inner, "payer")
        await producer.init()
        await producer.send(b"a", b"b", tp=TP)
        async with open_client(broker.bootstrap_servers) as client:
            (young,) = (await Sampler(client).take()).transactions
            reader = TransactionReader(client, patience_ms=0)
            (known,) = await reader.read([TP])
            saved = await store.load(TRANSACTION, "payer")
            assert saved is not None
            await store.save(TRANSACTION, "payer", None, expected_version=saved.version)
            (suspect,) = await reader.read([TP])
            (hanging,) = await reader.read([TP])

    assert ("open", "", TP, 0, producer.producer_id) == (
        young.state,
        young.transactional_id,
        young.tp,
        young.offset,
        young.producer_id,
    )
    assert ("Ongoing", "payer") == (known.state, known.transactional_id)
    assert ["open", "hanging"] == [suspect.state, hanging.state]
    assert [False, False, True] == [each.is_stuck for each in (known, suspect, hanging)]


@pytest.mark.parametrize(
    "known, now_ms, state",
    [
        (KNOWN, 2 * MINUTE_MS, "Ongoing"),
        (KNOWN, 2 * MINUTE_MS + 1, "Ongoing, overdue"),
        (evolve(KNOWN, state="PrepareCommit"), 3 * MINUTE_MS, "PrepareCommit, overdue"),
        (evolve(KNOWN, state="CompleteCommit"), 3 * MINUTE_MS, "open"),
        (None, 3 * MINUTE_MS, "open"),
    ],
)
def test_transaction_is_overdue_a_minute_after_its_timeout(
    known: Transaction | None, now_ms: int, state: str
) -> None:
    found = shown(OPEN, known, now_ms, is_hanging=False)

    assert (state, state.endswith("overdue")) == (found.state, found.is_stuck)
