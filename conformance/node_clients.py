"""Clients in JavaScript: KafkaJS and @platformatic/kafka, in the program in `node/`.

npm installs them once into the cache folder, together with the Node.js version that the second one requires.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.part import Result, Target, checks_of, npm_packages

SOURCES = Path(__file__).with_name("node")


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run every check on every broker. Raises Unavailable without npm, or if packages cannot be downloaded."""
    folder = installed()
    for target in targets:
        words: list[str | Path] = [
            folder / "node_modules" / ".bin" / "node",
            folder / "checks.js",
            target.bootstrap_servers,
        ]
        yield from checks_of(target, words)


def installed() -> Path:
    """Return the folder with the programs and the packages they need; the first call downloads these with npm."""
    why = "clients in JavaScript come through npm, which Node.js brings"
    folder = npm_packages(SOURCES / "package.json", "node", why)
    for source in SOURCES.glob("*.js"):  # Node.js looks for packages beside the source
        shutil.copy(source, folder)
    return folder
