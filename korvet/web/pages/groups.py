"""Consumer groups: the list, the page of one group with its lag, and the reset of its offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from korvet.client.committed_offsets import CommittedOffset, ResetRefused, Target, committed_offsets, reset
from korvet.client.groups import SHARE, Group, describe_group, list_groups
from korvet.client.share_offsets import ShareOffset, records_in_flight, share_offsets, share_partitions
from korvet.protocol.errors import UnsupportedVersion
from korvet.web.inputs import BadInput, choice, moment, number, signed_number
from korvet.web.pages.topics import Listed
from korvet.web.plots import plot_of
from korvet.web.sessions import Visitor
from korvet.web.site import Site, as_json, url

ROWS_A_PAGE = 50
LONGEST_ID = 1000
# Partitions whose records in flight are on the page of a share group, and rows for each.
PARTITIONS_IN_FLIGHT = 20
RECORDS_IN_FLIGHT = 20
TARGETS = ("earliest", "latest", "time", "offset", "shift")


class HasState(Protocol):
    """A group or a transactional id in a list."""

    @property
    def state(self) -> str: ...


async def groups(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the list of groups."""
    values = listed_by_state(request, await list_groups(visitor.client), lambda group: group.group_id)
    history = site.histories.of(visitor)
    values["plots"] = {each.group_id: plot_of(history.lag(each.group_id)) for each in values["listed"].items}
    return site.render(request, "groups.html", values)


def listed_by_state(
    request: Request, every: Sequence[HasState], id_of_each: Callable[[Any], str]
) -> dict[str, Any]:
    """Return the values of a list: those that a query selects by a part of their id and by their state."""
    query = request.query_params
    text = query.get("q", "").strip()
    state = query.get("state", "")
    selected = [
        each
        for each in every
        if text.lower() in id_of_each(each).lower() and (not state or each.state == state)
    ]
    return {
        "listed": Listed.of(selected, number(query, "page", 1), ROWS_A_PAGE),
        "every": len(every),
        "states": sorted({each.state for each in every if each.state}),
        "query": {"q": text, "state": state},
    }


async def group(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the page of a group."""
    return await _page_of(site, request, visitor, {})


async def _page_of(site: Site, request: Request, visitor: Visitor, faults: Mapping[str, str]) -> Response:
    """Return the page of a group, with the faults of its form."""
    group_id = id_of(request.query_params)
    described = await describe_group(visitor.client, group_id)
    if described.protocol_type == SHARE:
        return await _share_page(site, request, visitor, described)
    owners = {tp: member for member in described.members for tp in member.assignment}
    found = await committed_offsets(visitor.client, group_id, owners)
    values = {
        "group": described,
        "assigns": any(member.target is not None for member in described.members),
        "plot": plot_of(site.histories.of(visitor).lag(group_id)),
        "offsets": found,
        "owners": owners,
        "lag": lag_of(found),
        "topics": sorted({each.tp.topic for each in found}),
        "done": request.query_params.get("done", "") == "reset",
        "fields": request.query_params,
        "faults": faults,
    }
    return site.render(request, "group.html", values, status=400 if faults else 200)


async def _share_page(site: Site, request: Request, visitor: Visitor, described: Group) -> Response:
    """Return the page of a share group: each partition's start offset, lag and members, and who holds which records."""
    rows = await share_partitions(visitor.client, described)
    busy = [tp for tp, offset, _ in rows if offset.lag][:PARTITIONS_IN_FLIGHT]
    try:
        in_flight = await records_in_flight(visitor.client, described.group_id, busy, RECORDS_IN_FLIGHT)
    except UnsupportedVersion:  # the brokers are not korvet's
        in_flight = None
    values = {
        "group": described,
        "rows": rows,
        "lag": lag_of([offset for _, offset, _ in rows]),
        "in_flight": in_flight,
        "clients": {member.member_id: member.client_id for member in described.members},
    }
    return site.render(request, "share_group.html", values)


async def lag_json(_site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the lag of a group in records, for the list of groups."""
    if request.query_params.get("type") == SHARE:
        shares = await share_offsets(visitor.client, id_of(request.query_params))
        return as_json({"lag": lag_of(shares), "more": False})
    found = await committed_offsets(visitor.client, id_of(request.query_params), ())
    return as_json({"lag": lag_of(found), "more": any(each.more for each in found)})


def lag_of(found: Sequence[CommittedOffset | ShareOffset]) -> int | None:
    """Return the sum of the lags, or None if no partition has one."""
    lags = [each.lag for each in found if each.lag is not None]
    return sum(lags) if lags else None


async def preview(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the offsets that a reset would commit. Nothing is written."""
    query = request.query_params
    group_id, topic = id_of(query), query.get("topic", "")
    try:
        target, kind = _target(query), choice(query, "to", TARGETS)
    except BadInput as error:
        return await _page_of(site, request, visitor, {error.field: str(error)})
    values: dict[str, Any] = {
        "group_id": group_id,
        "topic": topic,
        "to": kind,
        "value": query.get("value", ""),
    }
    try:
        done = await reset(visitor.client, group_id, [topic] if topic else [], target, execute=False)
    except ResetRefused as error:
        return await _page_of(site, request, visitor, {"topic": str(error)})
    rows = [
        {"tp": tp, "before": done.before.get(tp), "after": offset}
        for tp, offset in sorted(done.offsets.items())
    ]
    return site.render(request, "reset.html", values | {"rows": rows, "warnings": done.warnings})


async def execute(site: Site, request: Request, visitor: Visitor) -> Response:
    """Commit the offsets of a reset."""
    fields = await site.written(request)
    target, group_id, topic = _target(fields), id_of(fields), fields.get("topic", "")
    try:
        await reset(visitor.client, group_id, [topic] if topic else [], target, execute=True)
    except ResetRefused as error:
        raise BadInput(str(error)) from None
    return RedirectResponse(url("/group", id=group_id, done="reset"), 303)


def _target(fields: Mapping[str, str]) -> Target:
    match choice(fields, "to", TARGETS):
        case "time":
            return Target("time", moment(fields, "value"))
        case "offset":
            return Target("offset", number(fields, "value", 0))
        case "shift":
            return Target("shift", signed_number(fields, "value"))
        case kind:
            return Target(kind)


def id_of(fields: Mapping[str, str], what: str = "a group") -> str:
    """Return the id that a query or a form names. Raises BadInput."""
    group_id = fields.get("id", "")
    if not group_id or len(group_id) > LONGEST_ID:
        raise BadInput(f"id is missing or too long; accepted: the id of {what}.")
    return group_id
