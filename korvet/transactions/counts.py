"""Counts of the transactions that a process begins and ends, for metrics."""

from __future__ import annotations

from attrs import define, field

from korvet.concurrency.histograms import new_histogram, observe
from korvet.storage.interface import TransactionResult
from korvet.transactions.document import State, Transaction


@define(eq=False)
class Counts:
    """See the module."""

    commits: int = 0
    aborts: int = 0
    timeouts: int = 0
    # Times from the decision to end a transaction until it is complete.
    end_seconds: list[float] = field(factory=new_histogram)
    # Transactions that this process has begun and has not seen to end: the id's transaction number, and its start in
    # milliseconds since 1970.
    open: dict[str, tuple[int, int]] = field(factory=dict)

    def begun(self, transactional_id: str, transaction: Transaction) -> None:
        """Note a transaction that is open."""
        if self.open.get(transactional_id, (0, 0))[0] != transaction.number:
            self.open[transactional_id] = (transaction.number, transaction.started_ms)

    def seen(self, transactional_id: str, transaction: Transaction | None) -> None:
        """Forget the id's open transaction, if its present state is another one."""
        found = self.open.get(transactional_id)
        if found is None:
            return
        is_open = transaction is not None and transaction.state is State.ONGOING
        if not is_open or transaction is None or transaction.number != found[0]:
            del self.open[transactional_id]

    def ended(self, result: TransactionResult, seconds: float) -> None:
        """Count a transaction that is complete."""
        observe(self.end_seconds, seconds)
        if result is TransactionResult.COMMIT:
            self.commits += 1
        else:
            self.aborts += 1
