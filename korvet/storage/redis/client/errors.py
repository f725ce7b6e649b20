"""What Redis refuses, as exceptions: named and derived as those of the `redis` package.

They are our own since that package, with all of its clients, takes a fifth of a broker's start to import, and of its
memory; so it is asked only for what a URL means, where there is one.
"""

from __future__ import annotations


class RedisError(Exception):
    """Whatever comes from a server, or from not reaching it."""


class RedisConnectionError(RedisError):
    """There is no connection, or not a usable one."""


class AuthenticationError(RedisConnectionError):
    """NOAUTH or WRONGPASS: it wants another user or password."""


class BusyLoadingError(RedisConnectionError):
    """LOADING: it reads its data first."""


class ResponseError(RedisError):
    """An error reply."""


class ExecAbortError(ResponseError):
    """EXECABORT: a command of the transaction was refused, so nothing was done."""


class NoPermissionError(ResponseError):
    """NOPERM: the user may not."""


class NoScriptError(ResponseError):
    """NOSCRIPT: the script has to be loaded again."""


class OutOfMemoryError(ResponseError):
    """OOM: its memory is full (`maxmemory`)."""


class ReadOnlyError(ResponseError):
    """READONLY: it is a replica."""
