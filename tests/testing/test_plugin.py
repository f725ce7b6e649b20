"""The pytest plugin in other projects: pytester runs pytest in a new folder."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

pytest_plugins = ["pytester"]

# Prints the modules that the plugin adds to those of pytest.
IMPORTED = """
import sys
import pytest
before = set(sys.modules)
import korvet.testing.plugin
print(*sorted(set(sys.modules) - before))
"""


def test_each_test_has_a_new_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_one(korvet_broker):
            assert "topic-0" == korvet_broker.create_topic()
            korvet_broker.produce("orders", "a")

        def test_other(korvet_broker):
            assert [0] == korvet_broker.produce("orders", "a")
    """)

    pytester.runpytest_inprocess().assert_outcomes(passed=2)


@pytest.mark.parametrize("scope", ["module", "session"])
def test_tests_share_a_broker_with_topics_of_their_own(pytester: pytest.Pytester, scope: str) -> None:
    pytester.makepyfile(f"""
        import pytest
        addresses = set()

        @pytest.mark.parametrize("number", range(3))
        def test_topics(korvet_{scope}_broker, number):
            topic = korvet_{scope}_broker.create_topic()
            assert [0] == korvet_{scope}_broker.produce(topic, "a")
            addresses.add(korvet_{scope}_broker.bootstrap_servers)

        def test_one_broker(korvet_{scope}_broker):
            assert {{korvet_{scope}_broker.bootstrap_servers}} == addresses
    """)

    pytester.runpytest_inprocess().assert_outcomes(passed=4)


def test_settings_are_overridden_by_a_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture(scope="session")
        def korvet_settings():
            return {"num.partitions": "3"}

        def test_partitions(korvet_broker):
            korvet_broker.produce("orders", "a", partition=2)
    """)

    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_broker_that_does_not_start_fails_the_test_with_its_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture(scope="session")
        def korvet_storage():
            return "nothing://here"

        def test_nothing(korvet_broker):
            pass
    """)

    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*nothing://here*"])


def test_unittest_uses_the_context_manager(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("""
        import unittest
        from korvet.testing import running_broker

        class TestOrders(unittest.TestCase):
            def setUp(self):
                self.broker = self.enterContext(running_broker())

            def test_orders(self):
                self.broker.produce("orders", "a")
                self.assertEqual(1, len(self.broker.records("orders")))

        if __name__ == "__main__":
            unittest.main()
    """)

    done = pytester.run(sys.executable, "-W", "error", path)
    assert 0 == done.ret
    done.stderr.fnmatch_lines(["OK"])


def test_plugin_imports_neither_the_broker_nor_trio() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)

    assert "korvet korvet.testing korvet.testing.plugin\n" == done.stdout


def test_assertions_are_rewritten_in_the_contract_and_not_in_the_broker() -> None:
    names = ["korvet.server.server", "korvet.handlers.fetch", "korvet.testing.contract.appending"]
    loaders = [type(import_module(name).__loader__).__name__ for name in names]

    assert ["SourceFileLoader", "SourceFileLoader", "AssertionRewritingHook"] == loaders


def test_importing_korvet_imports_no_tools_for_tests() -> None:
    script = (
        "import sys, korvet, korvet.server.assembly; print({'pytest', 'korvet.testing'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert "set()\n" == done.stdout
