"""Where the private server's memory comes from.

The wheel's server uses the C library's allocator. Once records are deleted, what the next ones get from glibc lies
scattered: appending them takes twice as long as with jemalloc, and three times the memory. So the server gets jemalloc
where the system has it, as Redis and Valkey come with on most systems. Otherwise glibc is set up for what an append
does:

- A script leaves tens of thousands of small pieces behind. glibc keeps 7 of each size at hand, and merges and splits
  the rest anew, a fifth of what an append costs; now it keeps as many as it can count.
- What a large append needs for a moment is kept for the next one. From the system it comes page by page, each filled
  with zeros.

Other C libraries know nothing of either, and who has set one of the variables already keeps it.
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
    """The environment variables of a server that is to be started. `folders` are looked through for jemalloc."""
    own = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())}
    found = next((path for folder in folders if (path := Path(folder, JEMALLOC)).exists()), None)
    if found is not None and sys.platform == "linux":
        own["LD_PRELOAD"] = str(found)
    return {**own, **os.environ}
