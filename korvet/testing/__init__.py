"""Tests for storage backends, for their authors. They require pytest, pytest-trio and hypothesis.

`storage_contract.StorageContract` is a test class to inherit. `storage_machine` compares a backend with a Python model
step by step. Both take an `environment.Environment`, which opens the storage.

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def environment(self) -> Environment:
            return MyEnvironment()

    def test_my_storage_matches_the_model():
        run_storage_machine(MyEnvironment)

The tests are asynchronous: set `trio_mode = true` for pytest-trio.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "korvet.testing.contract", "korvet.testing.storage_contract", "korvet.testing.storage_machine"
)
