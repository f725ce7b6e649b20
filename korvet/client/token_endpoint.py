"""Tokens for OAUTHBEARER from an OAuth 2.0 server, by the client credentials grant (RFC 6749, section 4.4).

A token is kept for most of its lifetime, for all connections of the process, since clients with many brokers would
otherwise ask for one for each connection. As in Kafka's clients, id and secret are not URL-encoded in the header.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode

from attrs import field, frozen

TIMEOUT_S = 10.0
ATTEMPTS = 3
BACKOFF_S = 0.1
# Share of its lifetime for which a token is used.
KEPT = 0.8
MOST_BYTES = 1024 * 1024


class TokenRefused(Exception):  # noqa: N818  the name states what happened
    """The server refuses to give a token to this client."""


class NoToken(Exception):  # noqa: N818  the name states what happened
    """The server does not answer, or not with a token; another attempt may succeed."""


@frozen
class Grant:
    """The request for a token: the server's URL, the client's id and secret, and a scope.

    `trusted` are authorities, as PEM, that are trusted besides those of the system.
    """

    url: str
    client_id: str = field(repr=False)
    client_secret: str = field(repr=False)
    scope: str = ""
    trusted: str = field(default="", repr=False)


_lock = threading.Lock()
_kept: dict[Grant, tuple[str, float]] = {}


def token_of(grant: Grant) -> str:
    """Return a token that is valid for some time. Blocks. Raises TokenRefused and NoToken."""
    with _lock:
        text, until_s = _kept.get(grant, ("", 0.0))
        if time.monotonic() < until_s:
            return text
        asked_s = time.monotonic()
        answer = _asked(grant)
        text = str(answer["access_token"])
        lifetime = answer.get("expires_in", 0)
        if isinstance(lifetime, int | float) and lifetime > 0:
            _kept[grant] = (text, asked_s + KEPT * lifetime)
        return text


def forget(grant: Grant) -> None:
    """Ask for a new token the next time, because a broker has refused this one."""
    with _lock:
        _kept.pop(grant, None)


def _asked(grant: Grant) -> dict[str, Any]:
    """Return the server's answer, which has a token. Temporary errors are retried."""
    for attempt in range(ATTEMPTS):
        try:
            return _answer(grant)
        except NoToken:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(BACKOFF_S * 2.0**attempt)
    raise AssertionError  # not reached


def _answer(grant: Grant) -> dict[str, Any]:
    login = base64.b64encode(f"{grant.client_id}:{grant.client_secret}".encode()).decode()
    form = {"grant_type": "client_credentials"} | ({"scope": grant.scope} if grant.scope else {})
    request = urllib.request.Request(  # noqa: S310  the settings accept only http and https
        grant.url,
        urlencode(form).encode(),
        {"Authorization": f"Basic {login}", "Accept": "application/json"},
    )
    try:
        with _opener(grant).open(request, timeout=TIMEOUT_S) as response:
            answer = json.loads(response.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            reason = _reason(error)
        if error.code >= 500 or error.code == 429:
            raise NoToken(f"{grant.url} answers {reason}") from None
        raise TokenRefused(f"{grant.url} gives this client no token: {reason}") from None
    except (OSError, HTTPException) as error:
        raise NoToken(f"{grant.url}: {getattr(error, 'reason', error)}") from None
    except ValueError:
        raise NoToken(f"{grant.url} answers something else than JSON") from None
    if not isinstance(answer, dict) or not isinstance(answer.get("access_token"), str):
        raise NoToken(f"{grant.url} answers without an access_token")
    return answer


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the status, and the error code of RFC 6749, section 5.2, if the answer has one."""
    try:
        code = json.loads(error.read(MOST_BYTES))["error"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        code = ""
    return f"{error.code} {code or error.reason}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would send the client's secret to another server."""

    def redirect_request(self, *_: object) -> None:
        return None


def _opener(grant: Grant) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    if grant.trusted:
        context.load_verify_locations(cadata=grant.trusted)
    return urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))
