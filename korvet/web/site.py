"""The parts that all pages share: the options, the visitors, templates, and the rules for requests."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import trio
from attrs import define, field
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

import korvet
from korvet.metrics.reading import Figures
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.web import formats
from korvet.web.history import Histories
from korvet.web.inputs import BadInput, TooLarge, form
from korvet.web.lake import Lake, open_lake
from korvet.web.options import PageOptions, is_loopback
from korvet.web.schemas import Schemas, open_schemas
from korvet.web.sessions import Sessions, Visitor, is_refusal
from korvet.web.values import Shown, shown

HERE = Path(__file__).parent
COOKIE = "korvet_session"
HTML = "text/html; charset=utf-8"
# Pages that are computed concurrently, pages that wait, and the limit of the time for one page.
PAGES_AT_ONCE = 6
PAGES_WAITING = 60
PAGE_LIMIT_S = 20.0
LIVE_VIEWS = 20

STATUSES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.INVALID_TOPIC_EXCEPTION: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: 404,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.NETWORK_EXCEPTION: 503,
    ErrorCode.BROKER_NOT_AVAILABLE: 503,
    ErrorCode.REQUEST_TIMED_OUT: 503,
    ErrorCode.UNKNOWN_SERVER_ERROR: 502,
}

logger = logging.getLogger(__name__)

READ_ONLY = "This page is read-only; --web-write (or korvet web --write) lets it write."

Handler = Callable[["Site", Request, Visitor], Awaitable[Response]]


@cache
def environment() -> Environment:
    """Return the templates. All pages of a process share them, since compiling them takes long."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.globals.update(version=korvet.__version__, url=url)
    templates.filters.update(
        bytes=formats.data_size, count=formats.count, time=formats.time_text, duration=formats.duration
    )
    return templates


def compile_templates() -> None:
    """Compile all templates now, so that the first visitor does not delay the broker."""
    for name in environment().list_templates():
        environment().get_template(name)


class NotHere(Exception):  # noqa: N818  names the condition
    """There is no such page, record or broker. The message is one line."""


class Refused(Exception):  # noqa: N818  names the condition
    """The visitor may not do this. The message is one line."""


@define(eq=False)
class Site:
    """One running page."""

    options: PageOptions
    sessions: Sessions = field(init=False)
    histories: Histories = field(init=False)
    schemas: Schemas | None = field(init=False)
    lake: Lake | None = field(init=False)
    #: The last two readings of the broker's metrics.
    figures: tuple[Figures | None, Figures | None] = (None, None)
    live_views: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(LIVE_VIEWS))
    _pages: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(PAGES_AT_ONCE))

    def __attrs_post_init__(self) -> None:
        self.sessions = Sessions(self.options)
        self.histories = Histories(self.sessions.is_here)
        self.schemas = open_schemas(self.options.registry) if self.options.registry else None
        self.lake = open_lake(self.options.lake) if self.options.lake else None

    # --- Responses --------------------------------------------------------------------------------------

    def render(
        self, request: Request, template: str, values: Mapping[str, Any], *, status: int = 200
    ) -> Response:
        """Return a page from a template."""
        session_id = request.cookies.get(COOKIE, "") if self.options.login else ""
        text = (
            environment()
            .get_template(template)
            .render(
                request_path=request.url.path,
                user=getattr(request.state, "user", ""),
                has_login=bool(self.options.login),
                write=self.options.write,
                has_archive=self.lake is not None,
                token=self.sessions.token(session_id),
                **values,
            )
        )
        return Response(text.encode("utf-8", "replace"), status, media_type=HTML)

    def fault(self, request: Request, status: int, message: str) -> Response:
        """Return a page, or JSON if the request was for JSON, with an error in one line."""
        if request.url.path.endswith(".json"):
            return as_json({"error": message}, status=status)
        return self.render(request, "fault.html", {"status": status, "message": message}, status=status)

    async def shown(self, data: bytes | None, form: str) -> Shown:
        """Return bytes of a record in a format, decoded by a schema if they name one."""
        if self.schemas is not None and data and (form == "schema" or (form == "auto" and data[0] == 0)):
            return await self.schemas.shown(data, form)
        return shown(data, form)

    # --- Requests ---------------------------------------------------------------------------------------

    def page(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that calls the handler with the visitor, within the limits, and reports its errors."""

        async def endpoint(request: Request) -> Response:
            if self._pages.statistics().tasks_waiting >= PAGES_WAITING:
                return self.fault(request, 503, "The page has too many requests at the moment; try again.")
            try:
                with trio.fail_after(PAGE_LIMIT_S):
                    async with self._pages:
                        return await self._answer(handler, request)
            except trio.TooSlowError:
                return self.fault(request, 504, f"The cluster did not answer within {PAGE_LIMIT_S:g} s.")

        return endpoint

    async def _answer(self, handler: Handler, request: Request) -> Response:
        try:
            visitor = await self.sessions.visitor(request.cookies.get(COOKIE, ""))
            if visitor is None:
                return self.to_login(request)
            request.state.user = visitor.user
            self.histories.of(visitor)
            return await handler(self, request, visitor)
        except TooLarge as error:
            return self.fault(request, 413, str(error))
        except BadInput as error:
            return self.fault(request, 400, str(error))
        except NotHere as error:
            return self.fault(request, 404, str(error))
        except Refused as error:
            return self.fault(request, 403, str(error))
        except KafkaError as error:
            if is_refusal(error) and self.options.login:
                await self.sessions.end(request.cookies.get(COOKIE, ""))
                return self.to_login(request)
            return self.fault(request, STATUSES.get(error.error_code, 400), explained(error))
        except BaseExceptionGroup as group:
            # Concurrent requests to several brokers; one of their errors is enough.
            errors = [error for error in flattened(group) if isinstance(error, KafkaError)]
            if not errors or len(errors) < len(flattened(group)):
                raise
            return self.fault(request, STATUSES.get(errors[0].error_code, 400), explained(errors[0]))

    def to_login(self, request: Request) -> Response:
        """Return the redirect to the login form, which returns to this page."""
        if request.url.path.endswith((".json", "/events")):
            return as_json({"error": "Log in first."}, status=401)
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        wanted = wanted if request.method == "GET" else "/topics"
        return RedirectResponse(url("/login", next=wanted), 303)

    async def written(self, request: Request) -> dict[str, str]:
        """Return the form of a request that writes. Raises Refused unless it comes from this page's own forms."""
        if not self.options.write:
            raise Refused(READ_ONLY)
        return await self.own_form(request)

    async def own_form(self, request: Request) -> dict[str, str]:
        """Return the form of a POST from this site. Raises Refused for another site's, and BadInput."""
        origin = network_location(request.headers.get("origin", ""))
        if not origin or origin != request.headers.get("host", "").lower():
            raise Refused("The form was not sent from this page.")
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise Refused("The form was sent from another site.")
        fields = await form(request)
        session_id = request.cookies.get(COOKIE, "") if self.options.login else ""
        token = self.sessions.token(session_id).encode()
        if not hmac.compare_digest(fields.pop("token", "").encode("utf-8", "replace"), token):
            raise Refused("The form has expired; go back, reload the page, and send it again.")
        return fields

    def knows_host(self, request: Request) -> bool:
        """Return False if a page on loopback is requested under another name, as after DNS rebinding."""
        if not self.options.is_loopback:
            return True
        try:
            return is_loopback(urlsplit(f"//{request.headers.get('host', '')}").hostname or "")
        except ValueError:
            return False


def network_location(origin: str) -> str:
    """Return the host and port of an origin in lower case; nothing if it is not a URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def explained(error: KafkaError) -> str:
    """Return the error's message with Kafka's name for it."""
    return f"{error} ({error.error_code.name})"


def flattened(error: BaseException) -> list[BaseException]:
    """Return the errors in nested exception groups."""
    if isinstance(error, BaseExceptionGroup):
        return [inner for each in error.exceptions for inner in flattened(each)]
    return [error]


def as_json(value: object, *, status: int = 200) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")


def url(path: str, **query: object) -> str:
    """Return a URL of this site. Query fields that are None or empty are left out; a trailing _ is removed."""
    fields = {name.rstrip("_"): str(value) for name, value in query.items() if value not in (None, "")}
    return f"{quote(path)}?{urlencode(fields)}" if fields else quote(path)
