"""Clients in JavaScript: KafkaJS and @platformatic/kafka, by the program in `node/`.

npm installs them once into the cache folder, and with them the Node.js that the second of them asks for.
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
    """Every check on every broker. Raises Unavailable without npm, or where packages cannot be fetched."""
    folder = installed()
    for source in SOURCES.glob("*.js"):  # beside the packages, where they are looked for
        shutil.copy(source, folder)
    for target in targets:
        words: list[str | Path] = [
            folder / "node_modules" / ".bin" / "node",
            folder / "checks.js",
            target.bootstrap_servers,
        ]
        yield from checks_of(target, words)


def installed() -> Path:
    """The folder that has what package.json names; the first call has npm fetch it."""
    npm = program("npm", "clients in JavaScript come through npm, which Node.js brings")
    folder = cache_folder() / f"node-{hashlib.sha256(MANIFEST.read_bytes()).hexdigest()[:12]}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(MANIFEST, folder)
        command(npm, "--prefix", folder, "install", "--no-audit", "--no-fund", "--no-package-lock")
        (folder / "complete").touch()
    return folder
