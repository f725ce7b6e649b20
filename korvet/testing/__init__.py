"""What authors of storage backends test them with; pytest, pytest-trio and hypothesis are needed.

`storage_contract.StorageContract` is a class of tests to inherit, `storage_machine` compares a backend with a
plain Python model step by step. Both are given an `environment.Environment`: a store, and ways to it.

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def environment(self) -> Environment:
            return MyEnvironment()

    def test_my_storage_is_like_the_model():
        run_storage_machine(MyEnvironment)

The tests are asynchronous: pytest-trio has to run with `trio_mode = true`.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "korvet.testing.contract", "korvet.testing.storage_contract", "korvet.testing.storage_machine"
)
