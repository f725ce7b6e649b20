"""Transactional ids: the list, and the page of one with the partitions of its open transaction."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from korvet.client.transactions import describe_transaction, list_transactions
from korvet.web.pages.groups import id_of, listed_by_state
from korvet.web.sessions import Visitor
from korvet.web.site import Site


async def transactions(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the list of transactional ids."""
    every = await list_transactions(visitor.client)
    values = listed_by_state(request, every, lambda each: each.transactional_id)
    return site.render(request, "transactions.html", values)


async def transaction(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the page of a transactional id."""
    found = await describe_transaction(visitor.client, id_of(request.query_params, "a transaction"))
    values = {"transaction": found, "open_ms": found.open_ms(time.time_ns() // 1_000_000)}
    return site.render(request, "transaction.html", values)
