"""Select the memory allocator of the private server.

The wheel's server uses the C library's allocator. After records are deleted, glibc places the next ones in scattered
memory: appending them takes twice as long as with jemalloc, and three times the memory. The server therefore uses
jemalloc if the system has it; Redis and Valkey are built with it on most systems. Otherwise glibc is tuned for appends:

- A script frees tens of thousands of small pieces. glibc caches 7 of each size, and merges and splits the rest again,
  a fifth of the cost of an append; with `tcache_count` it caches as many as it can count.
- Memory that a large append frees is kept for the next one. Otherwise it comes from the system page by page, each
  filled with zeros.

Other C libraries ignore both settings. A variable that is already set keeps its value.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

JEMALLOC = "libjemalloc.so.2"
FOLDERS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
TUNABLES = {"tcache_count": 65535, "mmap_threshold": 32 << 20, "trim_threshold": 64 << 20}


def environment(folders: Iterable[str | Path] = FOLDERS) -> dict[str, str]:
    """Return the environment variables for a new server; search `folders` for jemalloc."""
    own = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())}
    found = next((path for folder in folders if (path := Path(folder, JEMALLOC)).exists()), None)
    if found is not None and sys.platform == "linux":
        own["LD_PRELOAD"] = str(found)
    return {**own, **os.environ}
