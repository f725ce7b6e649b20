"""Transactional ids: the list, and the page of one with the partitions of its open transaction."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from korvet.client.transactions import OPEN, describe_transaction, list_transactions
from korvet.web.inputs import number
from korvet.web.pages.groups import id_of
from korvet.web.pages.topics import Listed
from korvet.web.sessions import Visitor
from korvet.web.site import Site

TRANSACTIONS_A_PAGE = 50


async def transactions(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the list of transactional ids."""
    query = request.query_params
    text = query.get("q", "").strip()
    state = query.get("state", "")
    every = await list_transactions(visitor.client)
    chosen = [
        each
        for each in every
        if text.lower() in each.transactional_id.lower() and (not state or each.state == state)
    ]
    values = {
        "listed": Listed.of(chosen, number(query, "page", 1), TRANSACTIONS_A_PAGE),
        "every": len(every),
        "states": sorted({each.state for each in every}),
        "query": {"q": text, "state": state},
    }
    return site.render(request, "transactions.html", values)


async def transaction(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the page of a transactional id."""
    found = await describe_transaction(visitor.client, id_of(request.query_params, "a transaction"))
    is_open = found.state in OPEN
    open_s = max(0.0, time.time() - found.started_ms / 1000) if is_open and found.started_ms >= 0 else None
    return site.render(request, "transaction.html", {"transaction": found, "open_s": open_s})
