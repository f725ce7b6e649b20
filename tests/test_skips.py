"""A skipped test fails the run, by name, after all others have run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PASSES = "def test_passes(): pass\n"
SKIPS = "import pytest\ndef test_skips(): pytest.skip('no kcat here')\n"
SKIPS_AT_IMPORT = "import pytest\npytest.skip('no library here', allow_module_level=True)\n"
FAILS_AS_EXPECTED = "import pytest\n@pytest.mark.xfail\ndef test_fails(): assert False\n"


def run(folder: Path, *arguments: str, **modules: str) -> tuple[int, str]:
    """Exit status and output of pytest over these modules, under the hooks of our own conftest."""
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    for name, source in modules.items():
        (folder / f"test_{name}.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("arguments", [(), ("-n", "1")], ids=["alone", "distributed"])
def test_skip_fails_the_run_and_is_reported(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    status, said = run(tmp_path, *arguments, first=SKIPS, second=SKIPS_AT_IMPORT, third=PASSES)

    assert pytest.ExitCode.TESTS_FAILED == status
    assert "1 passed, 2 skipped" in said
    _, named = said.split("skipped, so this run fails")
    assert "test_first.py::test_skips: no kcat here\n" in named
    assert "test_second.py: no library here\n" in named


def test_expected_failure_does_not_count_as_a_skip(tmp_path: Path) -> None:
    status, said = run(tmp_path, first=FAILS_AS_EXPECTED, second=PASSES)

    assert pytest.ExitCode.OK == status
    assert "1 passed, 1 xfailed" in said
