from __future__ import annotations

import resource

import pytest

from korvet.config import Config
from korvet.doctor.findings import Verdict
from korvet.doctor.machine import open_files


@pytest.mark.parametrize(
    "limit, max_connections, verdict",
    [
        (1024, 10_000, Verdict.WARNING),
        (1024, 900, Verdict.OK),
        (20_000, 10_000, Verdict.OK),
        (20_000, 1_000_000, Verdict.OK),
        (resource.RLIM_INFINITY, 10_000, Verdict.OK),
    ],
)
def test_limit_of_open_files_is_compared_with_the_connections(
    monkeypatch: pytest.MonkeyPatch, limit: int, max_connections: int, verdict: Verdict
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))

    assert verdict == open_files(Config(max_connections=max_connections)).verdict
