"""Run all checks for a broker's settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from korvet.config import Config
from korvet.doctor.findings import Finding, ok, warning
from korvet.doctor.lake import lake_findings
from korvet.doctor.listeners import listener_findings
from korvet.doctor.machine import machine_findings
from korvet.doctor.redis import redis_findings

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
    scheme = urlsplit(config.storage).scheme
    if scheme in REDIS:
        async for found in redis_findings(config):
            yield found
    elif scheme == "memory":
        yield warning(
            "storage",
            "memory:// keeps records in the broker's memory: its end is the end of all data",
            "--storage embedded:FOLDER or --storage redis://HOST:PORT, unless that is what you want",
        )
    else:
        yield ok("storage", f"{scheme}: storage has no checks; korvet serve reports its errors")
