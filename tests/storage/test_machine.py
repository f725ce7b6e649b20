"""Every backend, layout and mapping against the plain model, step by step."""

from __future__ import annotations

import pytest

from korvet.testing.memory import MemoryEnvironment
from korvet.testing.storage_machine import run_storage_machine


@pytest.mark.parametrize("mapping", ["dense", "timestamp"])
def test_memory_is_like_the_model(mapping: str) -> None:
    run_storage_machine(lambda: MemoryEnvironment({"offset.mapping": mapping}), max_examples=60)
