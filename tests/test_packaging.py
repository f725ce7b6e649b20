"""The source distribution contains what its own tests and documents refer to."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_SOURCE = {"korvet-data", "lake", "typed", "dist", "build"}


def test_sdist_contains_every_file_of_the_top_level_and_the_tests(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (archive,) = tmp_path.glob("korvet-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}

    visible = {
        path for path in ROOT.iterdir() if not path.name.startswith(".") and path.name not in NOT_SOURCE
    }
    assert {path.name for path in visible} <= {name.partition("/")[0] for name in names}
    assert {
        ".ci/run",
        "tests/test_packaging.py",
        "docs/README.md",
        "korvet/storage/scripts/append.lua",
    } <= names
