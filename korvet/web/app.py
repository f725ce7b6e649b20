"""The application: routes, headers of every response, and errors."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib import resources
from pathlib import PurePath

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from korvet.concurrency.background import background_nursery
from korvet.web.options import PageOptions
from korvet.web.pages import (
    access_actions,
    archive,
    cluster,
    groups,
    lake,
    live,
    login,
    produce,
    records,
    topic_actions,
    topics,
    transactions,
)
from korvet.web.pages.actions import FormOf, PlanOf, asking, executing
from korvet.web.site import Site

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # `same-origin`, because browsers send Origin: null from pages with `no-referrer`.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FAULTS = {
    404: "There is no such page.",
    405: "This page does not take this kind of request.",
    500: "The page failed; the log of the server has the reason.",
}

logger = logging.getLogger(__name__)


def application(options: PageOptions) -> Guard:
    """Return the page as an ASGI application. It connects to the cluster when a page is requested first."""
    site = Site(options)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            async with background_nursery() as nursery:
                site.histories.nursery = nursery
                yield
        finally:
            await site.sessions.close()

    app = Starlette(
        routes=routes(site),
        exception_handlers={HTTPException: partial(_http_fault, site), Exception: partial(_failed, site)},
        lifespan=lifespan,
    )
    return Guard(app, site)


def routes(site: Site) -> list[Route]:
    page = site.page

    def action(path: str, plan_of: PlanOf, form_of: FormOf | None = None) -> tuple[Route, Route]:
        return (
            Route(path, page(asking(plan_of, form_of)), methods=["GET"]),
            Route(path, page(executing(plan_of)), methods=["POST"]),
        )

    return [
        Route("/", _first_page),
        Route("/login", login.login_form(site), methods=["GET"]),
        Route("/login", login.log_in(site), methods=["POST"]),
        Route("/logout", login.log_out(site), methods=["POST"]),
        Route("/topics", page(topics.topics)),
        Route("/topics.json", page(topics.topics_json)),
        *action("/create-topic", topic_actions.create, topic_actions.create_form),
        Route("/topics/{topic}", page(topics.topic)),
        *action("/topics/{topic}/alter", topic_actions.alter, topic_actions.alter_form),
        *action("/topics/{topic}/delete", topic_actions.delete_topic),
        *action(
            "/topics/{topic}/delete-records", topic_actions.delete_records, topic_actions.delete_records_form
        ),
        Route("/topics/{topic}/topic.json", page(topics.topic_json)),
        Route("/topics/{topic}/records", page(records.records)),
        Route("/topics/{topic}/records/{partition:int}/{offset:int}", page(records.record)),
        Route("/topics/{topic}/download", page(records.download)),
        Route("/topics/{topic}/live", page(live.live)),
        Route("/topics/{topic}/events", page(live.events)),
        Route("/topics/{topic}/produce", page(produce.produce_form), methods=["GET"]),
        Route("/topics/{topic}/produce", page(produce.produce), methods=["POST"]),
        Route("/groups", page(groups.groups)),
        Route("/group", page(groups.group)),
        Route("/group/lag.json", page(groups.lag_json)),
        Route("/group/reset", page(groups.preview), methods=["GET"]),
        Route("/group/reset", page(groups.execute), methods=["POST"]),
        *action("/group/delete", topic_actions.delete_a_group),
        Route("/transactions", page(transactions.transactions)),
        Route("/transaction", page(transactions.transaction)),
        Route("/brokers", page(cluster.brokers)),
        Route("/brokers/figures.json", page(cluster.figures_json)),
        Route("/brokers/{node_id:int}", page(cluster.broker)),
        Route("/access", page(cluster.access)),
        *action("/access/acl", access_actions.create_acl, access_actions.acl_form),
        *action("/access/acl/delete", access_actions.delete_acl),
        *action("/access/user", access_actions.set_password, access_actions.user_form),
        *action("/access/user/delete", access_actions.delete_user),
        *action("/access/quota", access_actions.set_quota, access_actions.quota_form),
        Route("/lake", page(lake.lake)),
        Route("/archive", page(archive.archive)),
        Route("/static/{name}", _static(static_files())),
    ]


async def _first_page(_request: Request) -> Response:
    return RedirectResponse("/topics", 303)


def static_files() -> dict[str, bytes]:
    """Return the scripts, styles and images, by name."""
    folder = resources.files("korvet.web") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if PurePath(each.name).suffix in KINDS}


def _static(files: Mapping[str, bytes]) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404)
        headers = {"cache-control": "max-age=3600"}
        return Response(files[name], media_type=KINDS[PurePath(name).suffix], headers=headers)

    return serve


async def _http_fault(site: Site, request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    response = site.fault(request, status, FAULTS.get(status, "The request was refused."))
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response


async def _failed(site: Site, request: Request, error: Exception) -> Response:
    logger.error("the page %(path)r failed", {"path": request.url.path}, exc_info=error)
    return site.fault(request, 500, FAULTS[500])


class Guard:
    """Refuses requests under a foreign host name, and adds the headers of every response."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self.app = app
        self.site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        request = Request(scope)
        if not self.site.knows_host(request):
            text = "This page is for this machine only; open it as http://localhost and its port."
            await Response(text, 421)(scope, receive, send_with_headers)
            return
        await self.app(scope, receive, send_with_headers)
