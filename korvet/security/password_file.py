"""The users of PLAIN in a file: read when the broker starts, and again at intervals.

The passwords are clear text, as in the JAAS options `user_NAME` of Kafka. No message quotes the file.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from korvet.config import ConfigError
from korvet.config.properties import parse_properties
from korvet.security.password_checks import Check, checked_in_thread
from korvet.security.users import Users

logger = logging.getLogger(__name__)

SETTING: Final = "sasl.plain.users.file"
REFRESH_INTERVAL_S: Final = 5.0


@define(eq=False)
class PasswordFile:
    """The users of a file, which take precedence over `users`, those of the store."""

    path: str
    users: Users
    _passwords: Mapping[str, bytes] = field(repr=False)
    _fault: str = field(default="", init=False)  # the last one that was logged

    @classmethod
    def of(cls, path: str, users: Users) -> PasswordFile:
        """Return the users of a file. Raises ConfigError."""
        return cls(path, users, read_passwords(path))

    async def has_password(self, username: str, password: str, check: Check = checked_in_thread) -> bool:
        """Return True if that is the password of the user."""
        known = self._passwords.get(username)
        if known is not None and hmac.compare_digest(known, password.encode()):
            return True
        # For each wrong password, so that the duration does not depend on the users in the file.
        is_stored = await self.users.has_password(username, password, check)
        return is_stored and known is None

    async def run(self) -> None:
        """Read the file again at intervals. Never returns."""
        while True:
            await trio.sleep(REFRESH_INTERVAL_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Use the passwords of the file if it has changed. If it is not usable, log it once and keep the others."""
        try:
            passwords = await trio.to_thread.run_sync(read_passwords, self.path)
        except ConfigError as error:
            self._report(str(error))
            return
        self._fault = ""
        if passwords != self._passwords:
            self._passwords = passwords
            logger.info("PLAIN uses the new passwords in %(path)s", {"path": self.path})

    def _report(self, fault: str) -> None:
        if fault != self._fault:
            logger.error("%(error)s; PLAIN uses the previous passwords", {"error": fault})
        self._fault = fault


def read_passwords(path: str) -> Mapping[str, bytes]:
    """Return the passwords of the file by user. Raises ConfigError."""
    try:
        settings = parse_properties(Path(path).read_text(encoding="utf-8"))
        passwords = {name: password.encode() for name, password in settings.items() if name.encode()}
    except OSError as error:
        raise _fault(path, error.strerror or "it cannot be read") from None
    except UnicodeError:
        raise _fault(path, "it is not UTF-8 text") from None
    if len(passwords) < len(settings) or not all(passwords.values()):
        raise _fault(path, "a line has no name or no password; accepted: lines NAME: PASSWORD")
    return passwords


def _fault(path: str, reason: str) -> ConfigError:
    return ConfigError([f"$.{SETTING}: {path}: {reason}"])
