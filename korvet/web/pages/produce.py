"""The form that produces a record."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from korvet.client import Record, Topic
from korvet.protocol.errors import KafkaError
from korvet.protocol.record import Headers
from korvet.web.inputs import BadInput, choice, number, shortened
from korvet.web.pages.topics import find_topic
from korvet.web.sessions import Visitor
from korvet.web.site import Site, url

KINDS = ("text", "json", "hex", "null")


async def produce_form(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the form."""
    topic = await find_topic(request, visitor.client)
    values = {"topic": topic, "kinds": KINDS, "fields": {}, "faults": {}}
    return site.render(request, "produce.html", values)


async def produce(site: Site, request: Request, visitor: Visitor) -> Response:
    """Produce a record, and redirect to its page."""
    fields = await site.written(request)
    topic = await find_topic(request, visitor.client)
    try:
        record = _record(topic, fields)
        (result,) = await visitor.client.produce(topic.name, [record])
    except (BadInput, KafkaError) as error:
        faults = {getattr(error, "field", ""): str(error)}
        values = {"topic": topic, "kinds": KINDS, "fields": fields, "faults": faults}
        return site.render(request, "produce.html", values, status=400)
    return RedirectResponse(url(f"/topics/{topic.name}/records/{result.partition}/{result.offset}"), 303)


def _record(topic: Topic, fields: Mapping[str, str]) -> Record:
    """Return the record of the form. Raises BadInput."""
    partition = number(fields, "partition", None)
    if partition is not None and partition >= len(topic.partitions):
        accepted = f"0 to {len(topic.partitions) - 1}, or nothing"
        raise BadInput(f"partition is {partition}; accepted: {accepted}.", "partition")
    return Record(
        content(fields, "value"), key=content(fields, "key"), headers=_headers(fields), partition=partition
    )


def content(fields: Mapping[str, str], name: str) -> bytes | None:
    """Return the bytes of a key or value: of text, JSON or hex, or None for null. Raises BadInput."""
    # Browsers send the line ends of a text area as CR LF.
    text = fields.get(name, "").replace("\r\n", "\n")
    match choice(fields, f"{name}_kind", KINDS):
        case "null":
            if text:
                raise BadInput(f"the {name} is null and has text; accepted: one of them.", name)
            return None
        case "json":
            try:
                json.loads(text)
            except (ValueError, RecursionError) as error:
                raise BadInput(f"the {name} is not JSON: {shortened(str(error))}", name) from None
        case "hex":
            try:
                return bytes.fromhex(text)
            except ValueError:
                raise BadInput(f"the {name} is not hex; accepted: pairs of 0-9 and a-f.", name) from None
    return text.encode()


def _headers(fields: Mapping[str, str]) -> Headers:
    """Parse lines of NAME: VALUE."""
    headers: list[tuple[str, bytes | None]] = []
    for line in fields.get("headers", "").splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            fault = "no name before its colon" if colon else "no colon"
            raise BadInput(
                f"the line {shortened(line)} has {fault}; accepted: lines of NAME: VALUE.", "headers"
            )
        headers.append((name.strip(), value.strip().encode()))
    return tuple(headers)
