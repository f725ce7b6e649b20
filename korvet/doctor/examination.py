"""Run all checks for a broker's settings."""

from __future__ import annotations

from collections.abc import AsyncIterator

from korvet.config import Config
from korvet.doctor.embedded import embedded_findings
from korvet.doctor.findings import Finding, error, ok, warning
from korvet.doctor.lake import lake_findings
from korvet.doctor.listeners import listener_findings
from korvet.doctor.machine import machine_findings
from korvet.doctor.redis import redis_findings
from korvet.storage.interface import StorageUsageError
from korvet.storage.open import check_url, scheme_of

REDIS = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)


async def examine(config: Config) -> AsyncIterator[Finding]:
    """Yield the findings for a broker with these settings, as the checks find them."""
    for found in machine_findings(config):
        yield found
    async for found in listener_findings(config):
        yield found
    async for found in storage_findings(config):
        yield found
    if config.lake_url is not None:
        yield await lake_findings(config.lake_url)


async def storage_findings(config: Config) -> AsyncIterator[Finding]:
    """Yield the findings about the storage."""
    try:
        check_url(config.storage)
    except StorageUsageError as refusal:
        yield error("storage", str(refusal), "see docs/storage.md for the URLs")
        return
    scheme = scheme_of(config.storage)
    if scheme in REDIS:
        async for found in redis_findings(config):
            yield found
    elif scheme == "embedded":
        async for found in embedded_findings(config):
            yield found
    elif scheme == "memory":
        yield warning(
            "storage",
            "memory:// keeps records in the broker's memory: its end is the end of all data",
            "--storage embedded:FOLDER or --storage redis://HOST:PORT, unless that is what you want",
        )
    else:
        yield ok("storage", f"{scheme}: storage has no checks; korvet serve reports its errors")
