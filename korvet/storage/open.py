"""The storage that a URL names.

    memory://[?max_bytes=BYTES]    the broker's own memory
    redis:// rediss:// unix://     a Redis or Valkey server, written as the `redis` package has it
    embedded:PATH                  a private server of the broker's own, with its data in that folder

Backends are imported when they are asked for: a broker in memory starts without a Redis client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from korvet.storage.interface import OffsetMapping, Storage, StorageDefaults, StorageUsageError
from korvet.storage.memory import MemoryStorage, sensible_max_bytes
from korvet.storage.urls import without_password

ACCEPTED = "memory://, redis://, rediss://, unix:// or embedded:PATH"


@asynccontextmanager
async def open_storage(
    url: str,
    *,
    defaults: StorageDefaults | None = None,
    mapping: OffsetMapping | None = None,
    memory_max_bytes: int | None = None,
    embedded_appendfsync: str = "everysec",
    embedded_binary: str | None = None,
    redis_allow_eviction: bool = False,
) -> AsyncIterator[Storage]:
    """Open the storage, and close it with the block.

    `mapping` is that of new topics whose settings name none; None leaves it to the backend: dense in memory,
    timestamp on Redis. (The mapping in `defaults.topic_config` is not asked: it cannot say "not set".)
    `memory_max_bytes` counts where a memory URL says nothing itself. The server of an embedded storage is
    `embedded_binary`, or is looked for. With `redis_allow_eviction` a Redis that may evict records is accepted.

    Raises StorageUsageError for a URL that names no storage, or one that cannot be had.
    """
    defaults = StorageDefaults() if defaults is None else defaults
    match urlsplit(url).scheme:
        case "memory":
            max_bytes = memory_limit(url, memory_max_bytes)
            yield MemoryStorage(defaults, mapping=mapping or OffsetMapping.DENSE, max_bytes=max_bytes)
        case "redis" | "rediss" | "unix":
            from korvet.storage.redis_streams import open_redis_storage  # noqa: PLC0415  see the module

            async with open_redis_storage(
                url, defaults=defaults, mapping=mapping, allow_eviction=redis_allow_eviction
            ) as storage:
                yield storage
        case "embedded":
            from korvet.storage.embedded import embedded_server  # noqa: PLC0415  see the module

            folder, appendfsync = embedded_folder(url), embedded_appendfsync
            async with embedded_server(
                folder, appendfsync=appendfsync, binary=embedded_binary, meanwhile=import_redis_storage
            ) as server:
                from korvet.storage.redis_streams import open_redis_storage  # noqa: PLC0415

                async with open_redis_storage(server.address, defaults=defaults, mapping=mapping) as storage:
                    yield storage
        case _:
            raise StorageUsageError(f"{without_password(url)!r} names no storage; accepted are {ACCEPTED}")


def import_redis_storage() -> None:
    """Import it: a tenth of a second in which a server can start."""
    import korvet.storage.redis_streams  # noqa: F401, PLC0415


def embedded_folder(url: str) -> Path:
    """The folder that an embedded URL names, in which any sign may occur."""
    path = url.partition(":")[2]
    if not path or path.startswith("//"):
        raise StorageUsageError(
            f"{without_password(url)!r} names no folder; write embedded:PATH, as in embedded:korvet-data"
        )
    return Path(path).expanduser()


def memory_limit(url: str, default: int | None) -> int:
    """How many bytes a memory URL allows."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    text = options.pop("max_bytes", None)
    if options or parts.netloc or parts.path or parts.fragment:
        raise StorageUsageError(
            f"{without_password(url)!r} says too much; accepted are memory:// and memory://?max_bytes=BYTES"
        )
    if text is None:
        return sensible_max_bytes() if default is None else default
    if not text.isdecimal() or int(text) == 0:
        raise StorageUsageError(f"max_bytes in {url!r} is a number of bytes, such as {sensible_max_bytes()}")
    return int(text)
