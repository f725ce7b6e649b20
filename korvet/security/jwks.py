"""Key sets (JWKS, RFC 7517) from a file or a URL: read at intervals, and when a token names an unknown key.

If the file or the server is unavailable, the known keys stay valid, and tokens of other keys are not accepted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import trio
from attrs import Factory, define, field
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet

from korvet.urls import split_login, without_password

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
MOST_BYTES = 1 << 20
# Clients choose the key ids of their tokens, so an unknown one must not cause a request each time.
SHORTEST_INTERVAL_S = 10.0
# Errors of parsing content that is no key set.
NO_KEYS = (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


@define(eq=False)
class Jwks:
    """The keys at a URL with the scheme file, https or http. User and password in it are sent as HTTP Basic."""

    url: str = field(repr=without_password)
    refresh_s: float = 3600.0
    shortest_interval_s: float = SHORTEST_INTERVAL_S
    fetch: Callable[[str], Awaitable[bytes]] = field(default=Factory(lambda: fetch), repr=False)
    _keys: list[Key] = field(factory=list, init=False, repr=False)
    _read: float = field(
        default=float("-inf"), init=False
    )  # when the keys were last requested, on Trio's clock
    _lock: trio.Lock = field(factory=trio.Lock, init=False, repr=False)

    async def run(self) -> None:
        """Read the keys now and every `refresh_s` seconds. Never returns."""
        while True:
            await self._refresh(self._interval_s)
            await trio.sleep_until(self._read + self._interval_s)

    async def refresh(self) -> None:
        """Read the keys now. Keep the known ones if that fails."""
        await self._refresh(0.0)

    async def keys(self, key_id: object, kind: str) -> list[Key]:
        """Return the keys of that kind (`kty`) with that id, or all of that kind if the id is None."""
        found = self._matching(key_id, kind)
        if not found:
            await self._refresh(self.shortest_interval_s)
            found = self._matching(key_id, kind)
        return found

    @property
    def _interval_s(self) -> float:
        return self.refresh_s if self._keys else self.shortest_interval_s

    def _matching(self, key_id: object, kind: str) -> list[Key]:
        return [key for key in self._keys if key.key_type == kind and key_id in (None, key.kid)]

    async def _refresh(self, interval_s: float) -> None:
        """Read the keys unless they were requested within that interval. Keep the known ones if that fails."""
        async with self._lock:
            if trio.current_time() < self._read + interval_s:
                return
            self._read = trio.current_time()
            try:
                self._keys = _signature_keys(await self.fetch(self.url))
            except (OSError, *NO_KEYS) as error:
                shown = without_password(self.url)
                fields = {"url": shown, "error": error}
                logger.warning("the keys at %(url)s cannot be read; the known ones stay: %(error)s", fields)


async def fetch(url: str) -> bytes:
    """Return the content at a URL. Raises OSError and ValueError."""
    return await trio.to_thread.run_sync(_content, url, abandon_on_cancel=True)


def _content(url: str) -> bytes:
    if urlsplit(url).scheme not in ("file", "https", "http"):
        raise ValueError("the scheme is not file, https or http")
    address, headers = split_login(url)
    request = Request(address)  # noqa: S310  the scheme is checked
    for name, value in headers.items():
        request.add_unredirected_header(name, value)  # another server must not get the password
    try:
        with urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310  as above
            content: bytes = response.read(MOST_BYTES + 1)
    except HTTPError as error:
        error.close()
        raise
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return content


def _signature_keys(content: bytes) -> list[Key]:
    """Return the keys of a set that may verify signatures. Ignore keys of unsupported kinds."""
    keys: list[Key] = []
    for each in json.loads(content)["keys"]:
        try:
            if each.get("use", "sig") == "sig":
                keys += KeySet.import_key_set({"keys": [each]}).keys
        except NO_KEYS as error:
            logger.debug("a key of the set is not usable: %(error)s", {"error": error})
    return keys
