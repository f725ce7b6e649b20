"""Exceptions for the errors of Redis, with the names and base classes of those in the `redis` package.

Importing that package, with all of its clients, takes a fifth of a broker's start time and memory. So korvet defines
its own exceptions, and imports the package only to parse a URL.
"""

from __future__ import annotations


class RedisError(Exception):
    """Any error of a server, or of the connection to it."""


class RedisConnectionError(RedisError):
    """There is no connection, or no usable one."""


class AuthenticationError(RedisConnectionError):
    """NOAUTH or WRONGPASS: the server requires another user or password."""


class BusyLoadingError(RedisConnectionError):
    """LOADING: the server is still loading its data."""


class ResponseError(RedisError):
    """An error reply."""


class ExecAbortError(ResponseError):
    """EXECABORT: a command of the transaction was refused, so none was executed."""


class NoPermissionError(ResponseError):
    """NOPERM: the Redis user has no permission."""


class NoScriptError(ResponseError):
    """NOSCRIPT: the script has to be loaded again."""


class OutOfMemoryError(ResponseError):
    """OOM: the server's memory is full (`maxmemory`)."""


class ReadOnlyError(ResponseError):
    """READONLY: the server is a replica."""
