from __future__ import annotations

import platform
import resource
import sysconfig

import pytest

from korvet.config import Config
from korvet.doctor.findings import Verdict
from korvet.doctor.machine import interpreter, open_files


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


@pytest.mark.parametrize(
    "options, prefix, is_slow",
    [
        ("'--prefix=/opt' '--enable-optimizations'", "/opt", False),
        ("'--prefix=/opt'", "/opt", True),
        ("'--prefix=/usr'", "/usr", False),  # Debian's
        (None, "C:", False),
    ],
)
def test_interpreter_without_optimizations_is_named(
    monkeypatch: pytest.MonkeyPatch, options: str | None, prefix: str, is_slow: bool
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": options}.get)
    monkeypatch.setattr("sys.base_prefix", prefix)

    found = interpreter()

    assert Verdict.OK == found.verdict
    assert platform.python_version() in found.reason
    assert is_slow == ("without --enable-optimizations" in found.reason)
