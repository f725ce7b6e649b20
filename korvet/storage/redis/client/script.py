"""Lua scripts and their calls.

A call names its script by SHA-1, and a server that has lost the script (SCRIPT FLUSH, a restart, a promoted replica)
refuses the call. `Link` then loads the scripts of a write, and sends it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1

from attrs import frozen

from korvet.storage.redis.client.replies import Argument, Command


class Script:
    """A Lua script, which the server identifies by its SHA-1."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.sha = sha1(source, usedforsecurity=False).hexdigest().encode()

    def command(self, keys: Sequence[Argument], args: Sequence[Argument] = ()) -> Command:
        """Return the EVALSHA command, to be sent with `scripts=(self,)`."""
        return (b"EVALSHA", self.sha, len(keys), *keys, *args)


@frozen
class ScriptCall:
    """A script with its arguments, for `RedisCaller.run_all`."""

    script: Script
    keys: Sequence[Argument]
    args: Sequence[Argument] = ()

    @property
    def command(self) -> Command:
        return self.script.command(self.keys, self.args)
