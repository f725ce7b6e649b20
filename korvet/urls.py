"""Split URLs, and show them without their passwords."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

# Parts of the names of options whose values are passwords.
SECRET = re.compile("password|token|secret|api_?key|signature", re.IGNORECASE)


def without_password(url: str) -> str:
    """Return the URL for messages, without its password, and without its options if they may contain one.

    The URL need not be valid.
    """
    address, mark, options = url.partition("?")
    shown_options = "" if SECRET.search(options) else mark + options
    login, at, host = address.rpartition("@")
    scheme, slashes, credentials = login.rpartition("//")
    user = credentials.partition(":")[0]
    return f"{scheme}{slashes}{user}{at}{host}{shown_options}"


def split_hosts(url: str) -> SplitResult:
    """Split a URL that may name several servers, as in redis+sentinel://h1:1,[::1]:2/name.

    `urlsplit` of newer Pythons refuses an IPv6 address that is not the first one. Raises ValueError.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme.strip("+abcdefghijklmnopqrstuvwxyz"):
        return urlsplit(url)
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    return urlsplit(f"{scheme}://{rest.removeprefix(netloc)}")._replace(netloc=netloc)


def split_login(url: str) -> tuple[str, Mapping[str, str]]:
    """Return the URL without user and password, and the HTTP headers that log in with them."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, {}
    _, _, host = parts.netloc.rpartition("@")
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    address = urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))
    return address, {"Authorization": f"Basic {base64.b64encode(login).decode()}"}
