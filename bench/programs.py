"""Compile C programs, and keep them in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

COMPILE_LIMIT_S = 300.0


class ClientUnavailable(Exception):  # noqa: N818  the message names what the machine lacks
    """A client cannot be built here."""


def cache_folder() -> Path:
    """Return the folder that keeps compiled programs between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "korvet-bench"


def compiled(source: Path, *flags: str, headers: Mapping[str, str] | None = None) -> Path:
    """Compile a C source, unless a build of the same texts exists. Return the program's path.

    `headers` are files that the source includes from `../src/`. Raises ClientUnavailable.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not source.exists():
        raise ClientUnavailable(f"the load needs a C compiler and {source} (apt install gcc librdkafka-dev)")
    texts = [source.read_text(), *flags, *(headers or {}).values()]
    folder = cache_folder() / hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
    program = folder / source.stem
    if not program.exists():
        # "../src/x.h" is also looked up relative to every -I folder.
        (folder / "src").mkdir(parents=True, exist_ok=True)
        for name, text in (headers or {}).items():
            (folder / "src" / name).write_text(text)
        unfinished = program.with_suffix(".unfinished")
        subprocess.run(
            [compiler, "-O2", "-w", "-o", unfinished, source, "-I", folder / "src", *flags],
            check=True,
            timeout=COMPILE_LIMIT_S,
        )
        unfinished.rename(program)
    return program
