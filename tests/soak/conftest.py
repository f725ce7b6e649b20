"""Tests that run for minutes; only `make soak` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

# Every test has its own servers and brokers, as in the failure tests.
from tests.failures.conftest import numbers, start_broker, topic  # noqa: F401
from tests.soak.producers import commands  # noqa: F401
from tests.storage.conftest import new_server  # noqa: F401

FOLDER = f"{Path(__file__).parent}/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(FOLDER):
            item.add_marker(pytest.mark.soak)
