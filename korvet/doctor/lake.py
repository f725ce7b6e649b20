"""Checks of the lake of `lake.url`."""

from __future__ import annotations

import importlib.util

import trio

from korvet.doctor.findings import Finding, error, ok
from korvet.urls import without_password


async def lake_findings(url: str) -> Finding:
    """Check that the lake is reachable, and refuses a commit that would replace another one."""
    if importlib.util.find_spec("deltalake") is None:
        return error("lake", "lake.url requires more packages", "pip install 'korvet[lake]'")
    return await trio.to_thread.run_sync(probe, url)


def probe(url: str) -> Finding:
    """Probe a lake with deltalake, which blocks."""
    from korvet.lake.errors import LakeError  # noqa: PLC0415  it needs the extra
    from korvet.lake.location import Location  # noqa: PLC0415
    from korvet.lake.put_if_absent import refuse_unsafe_store  # noqa: PLC0415

    try:
        refuse_unsafe_store(Location.parse(url))
    except LakeError as refusal:
        return error("lake", str(refusal), "see docs/archives.md for the stores that work")
    return ok("lake", f"{without_password(url)} accepts one of several simultaneous commits")
