"""Clients in JavaScript: KafkaJS and @platformatic/kafka, in the program in `node/`.

npm installs them once into the cache folder, together with the Node.js version that the second one requires.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.apache_kafka import cache_folder
from conformance.part import Result, Target, checks_of, command, program

SOURCES = Path(__file__).with_name("node")
MANIFEST = SOURCES / "package.json"


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run every check on every broker. Raises Unavailable without npm, or if packages cannot be downloaded."""
    folder = installed()
    for source in SOURCES.glob("*.js"):  # Node.js looks for packages beside the source
        shutil.copy(source, folder)
    for target in targets:
        words: list[str | Path] = [
            folder / "node_modules" / ".bin" / "node",
            folder / "checks.js",
            target.bootstrap_servers,
        ]
        yield from checks_of(target, words)


def installed() -> Path:
    """Return the folder with the packages of package.json; the first call downloads them with npm."""
    npm = program("npm", "clients in JavaScript come through npm, which Node.js brings")
    folder = cache_folder() / f"node-{hashlib.sha256(MANIFEST.read_bytes()).hexdigest()[:12]}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(MANIFEST, folder)
        command(npm, "--prefix", folder, "install", "--no-audit", "--no-fund", "--no-package-lock")
        (folder / "complete").touch()
    return folder
