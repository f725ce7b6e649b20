"""The source distribution contains what its own tests and documents refer to."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = {"korvet", "pyspark_korvet", "docs", "examples", "tests", "bench", "conformance"}


def test_sdist_contains_all_files_of_the_top_level(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (archive,) = tmp_path.glob("korvet-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}

    files = {path.name for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")}
    assert files | FOLDERS <= {name.partition("/")[0] for name in names}
    assert {".ci/run", "docs/README.md", "korvet/storage/scripts/append.lua"} <= names
