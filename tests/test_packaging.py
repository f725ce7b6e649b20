"""The source distribution contains what its own tests and documents refer to, and its metadata no dead links."""

from __future__ import annotations

import re
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
        (information,) = (name for name in opened.getnames() if name.endswith("/PKG-INFO"))
        metadata = opened.extractfile(information)
        assert metadata is not None
        description = metadata.read().decode()

    files = {path.name for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")}
    assert files | FOLDERS <= {name.partition("/")[0] for name in names}
    assert "`docs/pipeline.md` describes all of it" in description
    assert [] == [link for link in re.findall(r"\]\(([^)]+)\)", description) if "://" not in link]
    assert {".ci/run", "docs/README.md", "korvet/storage/redis/scripts/append.lua"} <= names
