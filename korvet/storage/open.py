"""Open the storage that a URL names.

    memory://[?max_bytes=BYTES]    the broker's own memory
    redis:// rediss:// unix://     a Redis or Valkey server, written as the `redis` package has it
    redis+sentinel://              the primary that Sentinels name; rediss+sentinel:// with TLS
    redis+cluster://               a Redis Cluster, by some of its nodes; rediss+cluster:// with TLS
    embedded:PATH                  a private server of the broker's own, with its data in that folder

Another package adds a backend by an entry point of the group `korvet.storage`, named like the URL's scheme:

    [project.entry-points."korvet.storage"]
    sqlite = "my_package:open_sqlite"

A backend takes the URL and the broker's settings (`StorageOptions`), and returns an asynchronous context manager of a
`Storage`. It raises StorageUsageError for a URL that it does not understand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from attrs import evolve, field, frozen

from korvet.storage.interface import OffsetMapping, Storage, StorageDefaults, StorageUsageError
from korvet.storage.memory import MemoryStorage, sensible_max_bytes
from korvet.urls import without_password

if TYPE_CHECKING:
    from korvet.storage.redis.client.address import RedisAddress

GROUP = "korvet.storage"
# The scheme of workers for `embedded:`, whose server their parent runs.
RUNNING = "embedded-running"
FORMS = {
    "memory": "memory://",
    "redis": "redis://HOST:PORT/DB",
    "rediss": "rediss://HOST:PORT/DB",
    "unix": "unix://PATH",
    "redis+sentinel": "redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB",
    "rediss+sentinel": "rediss+sentinel://HOST:PORT,HOST:PORT/NAME/DB",
    "redis+cluster": "redis+cluster://HOST:PORT,HOST:PORT",
    "rediss+cluster": "rediss+cluster://HOST:PORT,HOST:PORT",
    "embedded": "embedded:FOLDER",
}
ACCEPTED = ", ".join(FORMS.values())


@frozen
class StorageOptions:
    """The broker's settings that concern storage. A backend ignores those of other backends."""

    defaults: StorageDefaults = field(factory=StorageDefaults)
    # The mapping of new topics whose settings name none. None leaves it to the backend: dense in memory, timestamp on
    # Redis. The mapping in `defaults.topic_config` cannot say "not set".
    mapping: OffsetMapping | None = None
    memory_max_bytes: int | None = None  # unless the URL has `max_bytes`
    embedded_appendfsync: str = "everysec"
    embedded_binary: str | None = None  # the private server's program; None: look for one
    redis_allow_eviction: bool = False  # accept a Redis that may evict records
    acks_all_fsync: bool = False  # acks=all waits until records are on disk (WAITAOF)
    reread_url: Callable[[], str] | None = None  # returns the URL with the passwords of now


Backend = Callable[[str, StorageOptions], AbstractAsyncContextManager[Storage]]


def open_storage(url: str, options: StorageOptions | None = None) -> AbstractAsyncContextManager[Storage]:
    """Open the storage, and close it with the block.

    Raise StorageUsageError for a URL that names no storage, or a storage that cannot be opened.
    """
    return backend_of(url)(url, options or StorageOptions())


def check_url(url: str) -> None:
    """Raise StorageUsageError if the URL names no storage. Open nothing."""
    backend = backend_of(url)
    if backend is open_redis:
        from korvet.storage.redis.client.address import parse_address  # noqa: PLC0415  see `open_redis`

        parse_address(url)
    elif backend is open_embedded:
        embedded_folder(url)
    elif backend is open_memory:
        memory_limit(url, None)


def backend_of(url: str) -> Backend:
    """Return the backend that the scheme of a URL names. Raise StorageUsageError if there is none."""
    if url in FORMS:
        raise StorageUsageError(f"{url!r} is not a URL; write {FORMS[url]}")
    scheme = scheme_of(url)
    return BUILT_IN.get(scheme) or installed_backend(url, scheme)


def scheme_of(url: str) -> str:
    """Return the scheme of a URL whose other parts may be invalid, or an empty string."""
    scheme, colon, _ = url.partition(":")
    return scheme.lower() if colon else ""


def installed_backend(url: str, scheme: str) -> Backend:
    """Return the backend that an installed package has for the scheme.

    Raise StorageUsageError if no package has one, or if it cannot be imported.
    """
    # Importing it and searching all packages takes some 50 ms, a tenth of the time in which a broker starts. So the
    # built-in backends are no entry points.
    from importlib.metadata import entry_points  # noqa: PLC0415

    installed = {found.name: found for found in entry_points(group=GROUP)}
    if scheme not in installed:
        accepted = ", ".join([ACCEPTED, *(f"{each}:…" for each in sorted(installed))])
        raise StorageUsageError(f"{without_password(url)!r} names no storage; accepted are {accepted}")
    found = installed[scheme]
    try:
        backend: Backend = found.load()
    except (ImportError, AttributeError) as error:
        package = "" if found.dist is None else f" of the package {found.dist.name}"
        message = f"the storage {scheme!r}{package} cannot be imported: {type(error).__name__}: {error}"
        raise StorageUsageError(message) from error
    return backend


@asynccontextmanager
async def open_memory(url: str, options: StorageOptions) -> AsyncIterator[Storage]:
    """Open storage in the broker's own memory."""
    max_bytes = memory_limit(url, options.memory_max_bytes)
    yield MemoryStorage(options.defaults, mapping=options.mapping or OffsetMapping.DENSE, max_bytes=max_bytes)


@asynccontextmanager
async def open_redis(url: str, options: StorageOptions) -> AsyncIterator[Storage]:
    """Open storage in a Redis or Valkey server."""
    # A broker in memory starts without a Redis client.
    from korvet.storage.redis.client.address import parse_address  # noqa: PLC0415
    from korvet.storage.redis_streams import open_redis_storage  # noqa: PLC0415

    async with open_redis_storage(
        evolve(parse_address(url), reread=options.reread_url),
        defaults=options.defaults,
        mapping=options.mapping,
        allow_eviction=options.redis_allow_eviction,
        fsync=options.acks_all_fsync,
    ) as storage:
        yield storage


@asynccontextmanager
async def open_embedded(url: str, options: StorageOptions) -> AsyncIterator[Storage]:
    """Start a private server in the folder, and open storage in it."""
    from korvet.storage.embedded.server import embedded_server  # noqa: PLC0415  see `open_redis`

    async with (
        embedded_server(
            embedded_folder(url),
            appendfsync=options.embedded_appendfsync,
            fsync=options.acks_all_fsync,
            binary=options.embedded_binary,
            meanwhile=import_redis_storage,
        ) as server,
        open_in_server(server.address, options) as storage,
    ):
        yield storage


@asynccontextmanager
async def open_running(url: str, options: StorageOptions) -> AsyncIterator[Storage]:
    """Open storage in the private server that another process runs in the folder: the parent of this worker."""
    from korvet.storage.embedded.server import address_of_server  # noqa: PLC0415  see `open_redis`

    async with open_in_server(address_of_server(embedded_folder(url)), options) as storage:
        yield storage


@asynccontextmanager
async def open_in_server(address: RedisAddress, options: StorageOptions) -> AsyncIterator[Storage]:
    """Open storage in a private server."""
    from korvet.storage.embedded.syncing import DURABILITY  # noqa: PLC0415  see `open_redis`
    from korvet.storage.redis_streams import open_redis_storage  # noqa: PLC0415  as above

    async with open_redis_storage(
        address,
        defaults=options.defaults,
        mapping=options.mapping,
        fsync=options.acks_all_fsync,
        # With WAITAOF the server syncs by itself, and its own settings say what that means.
        durability=DURABILITY
        if options.embedded_appendfsync == "everysec" and not options.acks_all_fsync
        else None,
    ) as storage:
        yield storage


BUILT_IN: Mapping[str, Backend] = {
    "memory": open_memory,
    "redis": open_redis,
    "rediss": open_redis,
    "unix": open_redis,
    "redis+sentinel": open_redis,
    "rediss+sentinel": open_redis,
    "redis+cluster": open_redis,
    "rediss+cluster": open_redis,
    "embedded": open_embedded,
    RUNNING: open_running,
}


def import_redis_storage() -> None:
    """Import the Redis backend, while a server starts: it takes a tenth of a second."""
    import korvet.storage.redis_streams  # noqa: F401, PLC0415


def embedded_folder(url: str) -> Path:
    """Return the folder that an embedded URL names. Its name may contain any character."""
    path = url.partition(":")[2]
    if not path or path.startswith("//"):
        raise StorageUsageError(
            f"{without_password(url)!r} names no folder; write embedded:PATH, as in embedded:korvet-data"
        )
    return Path(path).expanduser()


def memory_limit(url: str, default: int | None) -> int:
    """Return the number of bytes that a memory URL allows."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StorageUsageError(f"{without_password(url)}: {error}; accepted: memory://") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    text = options.pop("max_bytes", None)
    if options or parts.netloc or parts.path or parts.fragment:
        raise StorageUsageError(
            f"{without_password(url)!r} has unknown parts; accepted: memory://, memory://?max_bytes=BYTES"
        )
    if text is None:
        return sensible_max_bytes() if default is None else default
    if not text.isdecimal() or int(text) == 0:
        raise StorageUsageError(f"max_bytes in {url!r} is a number of bytes, such as {sensible_max_bytes()}")
    return int(text)
