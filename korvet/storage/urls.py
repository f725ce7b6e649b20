"""Show a storage URL without its password."""

from __future__ import annotations


def without_password(url: str) -> str:
    """Return the URL for messages, without its password, and without its options if they contain one.

    The URL need not be valid.
    """
    address, mark, options = url.partition("?")
    shown_options = "" if "password" in options.lower() else mark + options
    login, at, host = address.rpartition("@")
    scheme, slashes, credentials = login.rpartition("//")
    user = credentials.partition(":")[0]
    return f"{scheme}{slashes}{user}{at}{host}{shown_options}"
