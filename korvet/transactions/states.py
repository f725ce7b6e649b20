"""The saved states of transactional ids: decide on an event, and save the outcome by compare-and-set.

The document in the store is the truth, and any process of any broker may save it. A decision is made from the state
that this process has read or saved last. It is valid if nothing else was saved since: the store compares the version of
the document with each save, and a result that saves nothing, or refuses, is confirmed by reading the document. After a
conflict, the decision is made again from the document that the store has returned.

The cache is bounded by the number of ids and of their partitions. It answers two frequent questions without the store:
the state that a save begins from, and whether partitions are in the ongoing transaction already (`number_of`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import trio
from attrs import define, evolve, field, frozen

from korvet.protocol.errors import ConcurrentTransactions, CoordinatorNotAvailable, KafkaError
from korvet.protocol.text import quoted
from korvet.storage.interface import Document, DocumentConflict, Documents
from korvet.transactions.document import Partition, State, Transaction, UnreadableDocument, read, written
from korvet.transactions.machine import Add, Decision, End, Event, ProducerIdNeeded, decide

logger = logging.getLogger(__name__)

#: The kind of the documents of transactional ids.
TRANSACTION = "transaction"

# Decisions while other processes save the document in between.
ATTEMPTS = 8
# The limit of the cache: ids, plus the partitions and groups of their transactions. An item has about 500 bytes.
CACHED_ITEMS = 100_000


class Unreadable(CoordinatorNotAvailable):
    """The document of an id is not one of korvet's, and was logged."""


@frozen
class Saved:
    """A state, and the version of its document."""

    transaction: Transaction
    version: int

    @property
    def items(self) -> int:
        """The part of CACHED_ITEMS that the state occupies."""
        return 1 + len(self.transaction.partitions) + len(self.transaction.groups)


@define
class Line:
    """The requests of this process for one id, which follow each other."""

    lock: trio.Lock = field(factory=trio.Lock)
    requests: int = 0


@define(eq=False)
class States:
    """See the module.

    `clock` returns milliseconds since 1970, and `allocate` an unused producer id. Documents are deleted after
    `expiration_ms` at the earliest. `unsure` is called with an id whose save may or may not have succeeded.
    """

    storage: Documents
    clock: Callable[[], int]
    allocate: Callable[[], Awaitable[int]]
    expiration_ms: int
    unsure: Callable[[str], None]
    max_items: int = CACHED_ITEMS
    _cache: OrderedDict[str, Saved] = field(factory=OrderedDict)  # the most recently used last
    _items: int = 0
    _lines: dict[str, Line] = field(factory=dict)
    _unreadable: set[str] = field(factory=set)  # ids whose unreadable document was logged

    # --- Reading ----------------------------------------------------------------------------------------

    def known(self, transactional_id: str) -> Transaction | None:
        """Return the state that this process has read or saved last. It may be out of date."""
        saved = self._cached(transactional_id)
        return None if saved is None else saved.transaction

    def number_of(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: frozenset[Partition],
        groups: frozenset[str],
    ) -> int | None:
        """Return the number of the ongoing transaction if all of this is in it, as far as this process knows.

        The transaction may have ended meanwhile. Partitions and groups refuse records and offsets of its number then.
        They forget this in the end, so the cache answers only until the transaction times out.
        """
        saved = self._cache.get(transactional_id)
        if saved is None:
            return None
        known = saved.transaction
        if (
            known.state is not State.ONGOING
            or self.clock() >= known.ends_ms
            or producer != (known.producer_id, known.producer_epoch)
            or not (partitions <= known.partitions and groups <= known.groups)
        ):
            return None
        self._cache.move_to_end(transactional_id)
        return known.number

    async def read(self, transactional_id: str) -> Saved | None:
        """Return the stored state, or None. It is not cached. Raises CoordinatorNotAvailable if it is unreadable."""
        return self._read(transactional_id, await self.storage.load(TRANSACTION, transactional_id))

    def forget(self, transactional_id: str) -> None:
        """Remove an id from the cache, so that the next decision reads its document."""
        if (saved := self._cache.pop(transactional_id, None)) is not None:
            self._items -= saved.items

    def _read(self, transactional_id: str, document: Document | None) -> Saved | None:
        if document is None:
            return None
        try:
            return Saved(read(transactional_id, document.value), document.version)
        except UnreadableDocument as error:
            if transactional_id not in self._unreadable:
                self._unreadable.add(transactional_id)
                fields = {"error": error, "transactional_id": transactional_id}
                logger.error("%(error)s: it is not served", fields)  # noqa: TRY400  the traceback adds nothing
            raise Unreadable(str(error)) from None

    # --- Deciding ---------------------------------------------------------------------------------------

    async def decide(self, transactional_id: str, event: Event) -> Decision:
        """Return the decision on an event, once the store has its state.

        Raises the errors of `machine.decide` and of the storage, and ConcurrentTransactions after too many conflicts.
        """
        with self._line(transactional_id) as line:
            async with line.lock:
                saved = self._cached(transactional_id)
                try:
                    decision = None if saved is None else await self._change(transactional_id, saved, event)
                except DocumentConflict as conflict:
                    document = conflict.current
                else:
                    if decision is not None:
                        return decision
                    document = await self.storage.load(TRANSACTION, transactional_id)
                return await self._decide(transactional_id, document, event)

    async def _change(self, transactional_id: str, saved: Saved, event: Event) -> Decision | None:
        """Save the decision from a cached state, and return it. Return None if it saves nothing, or refuses."""
        try:
            decision = await self._decision(transactional_id, saved, event)
        except KafkaError:
            return None
        if decision.state is saved.transaction:
            return None
        return await self._save(transactional_id, event, decision, saved.version)

    async def _decide(self, transactional_id: str, document: Document | None, event: Event) -> Decision:
        for _ in range(ATTEMPTS):
            saved = self._read(transactional_id, document)
            if saved is None:
                self.forget(transactional_id)
            else:
                self._note(transactional_id, saved)
            decision = await self._decision(transactional_id, saved, event)
            is_same = saved is not None and decision.state is saved.transaction
            # A repeated Add is saved again: perhaps replicas did not confirm the first one, and a failover can lose it.
            if is_same and not isinstance(event, Add):
                return evolve(decision, is_saved=False)
            try:
                version = saved.version if saved else 0
                return await self._save(transactional_id, event, decision, version)
            except DocumentConflict as conflict:
                document = conflict.current
        raise ConcurrentTransactions(
            f"other processes save the transactional id {quoted(transactional_id)} all the time"
        )

    async def _decision(self, transactional_id: str, saved: Saved | None, event: Event) -> Decision:
        transaction = None if saved is None else saved.transaction
        if isinstance(event, Add | End):
            event = evolve(event, server=self.storage.incarnation(TRANSACTION, transactional_id))
        try:
            return decide(transaction, event, self.clock())
        except ProducerIdNeeded:
            fresh_id = await self.allocate()
        return decide(transaction, event, self.clock(), fresh_id=fresh_id)

    async def _save(self, transactional_id: str, event: Event, decision: Decision, version: int) -> Decision:
        state = decision.state
        document = (TRANSACTION, transactional_id, written(state))
        try:
            if isinstance(event, End) and state.state is State.PREPARE_COMMIT and state.server:
                # Another incarnation may have lost records of the transaction.
                saved = await self.storage.save_in(state.server, *document, expected_version=version)
            else:
                saved = await self.storage.save(*document, expected_version=version)
        except DocumentConflict:
            raise
        except BaseException:
            self.forget(transactional_id)
            self.unsure(transactional_id)
            raise
        self._note(transactional_id, Saved(decision.state, saved))
        return decision

    async def delete(self, transactional_id: str, saved: Saved) -> None:
        """Delete an id's document, unless another process has saved it meanwhile."""
        self.forget(transactional_id)
        with suppress(DocumentConflict):
            await self.storage.save(TRANSACTION, transactional_id, None, expected_version=saved.version)

    @contextmanager
    def _line(self, transactional_id: str) -> Iterator[Line]:
        """Count a request for an id while the block runs: the id's lock exists while it has requests."""
        line = self._lines.setdefault(transactional_id, Line())
        line.requests += 1
        try:
            yield line
        finally:
            line.requests -= 1
            if not line.requests:
                del self._lines[transactional_id]

    # --- The cache --------------------------------------------------------------------------------------

    def _cached(self, transactional_id: str) -> Saved | None:
        """Return the cached state, unless its document may have been deleted and created again since.

        The versions of the new document begin again, so that a save could replace it.
        """
        saved = self._cache.get(transactional_id)
        if saved is not None and self.clock() - saved.transaction.updated_ms >= self.expiration_ms // 2:
            self.forget(transactional_id)
            return None
        return saved

    def _note(self, transactional_id: str, saved: Saved) -> None:
        self.forget(transactional_id)
        if saved.items > self.max_items:
            return
        self._cache[transactional_id] = saved
        self._items += saved.items
        while self._items > self.max_items:
            _, oldest = self._cache.popitem(last=False)
            self._items -= oldest.items
