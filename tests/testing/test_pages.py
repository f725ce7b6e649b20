"""The examples of the README and of docs/testing.md, run as a reader pastes them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.slow, pytest.mark.clients]

ROOT = Path(__file__).parents[2]
TESTING = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (test_\w+\.py)\n")
# The whole contract runs in tests/storage/test_contract.py.
OPTIONS = {"test_my_backend.py": ["-k", "topic"]}


def examples() -> dict[str, str]:
    """Return the examples that begin with the name of a file of tests, by that name."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = [each[1] for text in (readme, TESTING) for each in EXAMPLE.finditer(text)]
    return {name[1]: text for text in found if (name := FILE_NAME.match(text))}


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Let examples with Hypothesis take as long as they need on a machine that is busy."""
    before = settings.get_current_profile_name()
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")
    yield
    settings.load_profile(before)


@pytest.mark.parametrize("name", examples())
def test_example_passes_as_pasted(pytester: pytest.Pytester, name: str) -> None:
    if name == "test_my_backend.py":  # its section requires this
        pytester.makeini("[pytest]\ntrio_mode = true\n")
    pytester.path.joinpath(name).write_text(examples()[name], encoding="utf-8")

    outcomes = pytester.runpytest_inprocess(*OPTIONS.get(name, ())).parseoutcomes()

    assert outcomes.pop("passed")
    assert outcomes.keys() <= {"deselected"}


def programs() -> list[str]:
    """Return the examples of the section about programs without pytest."""
    section = TESTING.partition("## Without pytest")[2].partition("\n## ")[0]
    return [each[1] for each in EXAMPLE.finditer(section)]


@pytest.mark.parametrize("number", range(len(programs())))
def test_program_runs_as_pasted(tmp_path: Path, number: int) -> None:
    path = tmp_path / "program.py"
    path.write_text(programs()[number], encoding="utf-8")

    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(korvet\.[a-z_.]+\.[A-Z]\w+)`", TESTING))))
def test_class_is_where_the_page_says(name: str) -> None:
    module, _, cls = name.rpartition(".")

    assert hasattr(import_module(module), cls)
