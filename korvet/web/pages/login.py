"""The login form, and the logout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from korvet.protocol.errors import KafkaError
from korvet.web.inputs import BadInput, TooLarge
from korvet.web.sessions import LIFETIME_S, LoginFailed
from korvet.web.site import COOKIE, Refused, Site, explained

Endpoint = Callable[[Request], Awaitable[Response]]


def login_form(site: Site) -> Endpoint:
    """Return the endpoint that shows the form."""

    async def show(request: Request) -> Response:
        return _form(site, request, "", 200)

    return show


def log_in(site: Site) -> Endpoint:
    """Return the endpoint that logs a user in, and redirects to the page that the user wanted."""

    async def post(request: Request) -> Response:
        try:
            fields = await site.own_form(request)
            address = request.client.host if request.client is not None else ""
            session_id = await site.sessions.log_in(
                fields.get("user", ""), fields.get("password", ""), address
            )
        except LoginFailed as error:
            return _form(site, request, str(error), 401)
        except TooLarge as error:
            return site.fault(request, 413, str(error))
        except BadInput as error:
            return site.fault(request, 400, str(error))
        except Refused as error:
            return site.fault(request, 403, str(error))
        except KafkaError as error:
            return site.fault(request, 503, explained(error))
        await site.sessions.end(request.cookies.get(COOKIE, ""))
        response = RedirectResponse(own_path(request.query_params.get("next", "")), 303)
        response.set_cookie(
            COOKIE,
            session_id,
            max_age=int(LIFETIME_S),
            httponly=True,
            samesite="strict",
            secure=site.options.has_tls,
        )
        return response

    return post


def log_out(site: Site) -> Endpoint:
    """Return the endpoint that ends a session."""

    async def post(request: Request) -> Response:
        try:
            await site.own_form(request)
        except (BadInput, Refused) as error:
            return site.fault(request, 403, str(error))
        await site.sessions.end(request.cookies.get(COOKIE, ""))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE)
        return response

    return post


def _form(site: Site, request: Request, message: str, status: int) -> Response:
    if not site.options.login:
        return RedirectResponse("/topics", 303)
    values = {"message": message, "next": own_path(request.query_params.get("next", ""))}
    return site.render(request, "login.html", values, status=status)


def own_path(path: str) -> str:
    """Return the path if it is one of this site's own, else the first page."""
    try:
        parts = urlsplit(path) if path.isascii() and path.isprintable() else None
    except ValueError:  # such as //[::1
        parts = None
    is_own = parts is not None and not parts.scheme and not parts.netloc
    return path if is_own and path.startswith("/") and not path.startswith(("//", "/\\")) else "/topics"
