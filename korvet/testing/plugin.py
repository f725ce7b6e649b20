"""The pytest plugin: fixtures with a real broker in this process.

`korvet_broker` starts a new, empty broker for each test. `korvet_module_broker` and `korvet_session_broker` share one;
their tests call `create_topic()` and `new_name()` for names that no other test uses. A broker that does not start, or
that fails, fails the test with its error.

Override `korvet_storage` and `korvet_settings` in a conftest.py or in a test module to configure the brokers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from korvet.testing.threads import RunningBroker

# The broker is imported in the fixtures: pytest imports this module at every start, also in projects without Kafka.


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Exclude the broker from the rewriting of assertions, which pytest applies to every package with a plugin."""
    # Rewriting parses a module when it is imported. A broker imports modules in several threads, and Python 3.11 raises
    # SystemError if two threads parse at the same time.
    hook = early_config.pluginmanager.rewrite_hook
    getattr(hook, "_must_rewrite", set[str]()).discard("korvet")


@pytest.fixture(scope="session")
def korvet_storage() -> str:
    """Return the storage of korvet's brokers: memory, embedded (a private Valkey), or any storage URL."""
    return "memory"


@pytest.fixture(scope="session")
def korvet_settings() -> Mapping[str, str]:
    """Return the settings of korvet's brokers by name, such as {"num.partitions": "3"}."""
    return {}


@pytest.fixture
def korvet_broker(korvet_storage: str, korvet_settings: Mapping[str, str]) -> Iterator[RunningBroker]:
    """Provide a new Kafka broker for this test (korvet)."""
    yield from broker(korvet_storage, korvet_settings)


@pytest.fixture(scope="module")
def korvet_module_broker(korvet_storage: str, korvet_settings: Mapping[str, str]) -> Iterator[RunningBroker]:
    """Provide a Kafka broker that the tests of a module share (korvet)."""
    yield from broker(korvet_storage, korvet_settings)


@pytest.fixture(scope="session")
def korvet_session_broker(korvet_storage: str, korvet_settings: Mapping[str, str]) -> Iterator[RunningBroker]:
    """Provide a Kafka broker that all tests share (korvet)."""
    yield from broker(korvet_storage, korvet_settings)


def broker(storage: str, settings: Mapping[str, str]) -> Iterator[RunningBroker]:
    from korvet.testing.threads import running_broker  # noqa: PLC0415  see above

    with running_broker(storage, settings) as running:
        yield running
