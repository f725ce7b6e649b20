"""Transactional ids: the list, and the page of one with the partitions of its open transaction."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from korvet.client import LATEST, TopicPartition
from korvet.client.open_transactions import OVERDUE, Found, is_overdue
from korvet.client.transactions import describe_transaction, list_transactions
from korvet.protocol.errors import KafkaError
from korvet.web.pages.groups import id_of, listed_by_state
from korvet.web.sessions import Visitor
from korvet.web.site import Site

# Limit of the partitions in which open transactions are looked for.
MAX_PARTITIONS = 20_000


async def transactions(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the list of transactional ids, after the transactions for which consumers wait."""
    every = await list_transactions(visitor.client)
    values = listed_by_state(request, every, lambda each: each.transactional_id)
    return site.render(request, "transactions.html", {**values, "open": await _open(visitor)})


async def _open(visitor: Visitor) -> Found:
    """Return the open transactions in the partitions that the visitor may see."""
    tps = [
        TopicPartition(topic.name, each.partition)
        for topic in (await visitor.topics()).values()
        for each in topic.partitions
        if each.leader_id >= 0
    ]
    notes = []
    if len(tps) > MAX_PARTITIONS:
        notes.append(f"transactions in the first {MAX_PARTITIONS:,} of {len(tps):,} partitions only")
    try:
        ends = await visitor.client.list_offsets(dict.fromkeys(tps[:MAX_PARTITIONS], LATEST))
        found = await visitor.open_transactions.find({tp: at.offset for tp, at in ends.items()})
    except KafkaError as error:
        return Found((), (f"open transactions are unknown: {error.message}",))
    return Found(found.transactions, (*notes, *found.notes))


async def transaction(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the page of a transactional id."""
    found = await describe_transaction(visitor.client, id_of(request.query_params, "a transaction"))
    now_ms = time.time_ns() // 1_000_000
    state = f"{found.state}, {OVERDUE}" if is_overdue(found, now_ms) else found.state
    values = {"transaction": found, "state": state, "open_ms": found.open_ms(now_ms)}
    return site.render(request, "transaction.html", values)
