"""Checks of the machine's interpreter and limits."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator

from korvet.config import Config
from korvet.doctor.findings import Finding, ok, warning
from korvet.doctor.interpreter import is_optimized

# Descriptors that a process of the broker needs beside those of its clients.
OWN_FILES = 64
# Fewer connections than this are too few for most clusters, whatever max.connections is.
USUAL_CONNECTIONS = 10_000


def machine_findings(config: Config) -> Iterator[Finding]:
    """Yield the findings about the interpreter and the limits of the machine."""
    yield interpreter()
    yield open_files(config)


def interpreter() -> Finding:
    """Name the interpreter, and say if it is a slow build."""
    build = f"{platform.python_implementation()} {platform.python_version()}"
    if is_optimized():
        return ok("interpreter", build)
    return ok(
        "interpreter", f"{build}, built without --enable-optimizations: others need a quarter less time"
    )


def open_files(config: Config) -> Finding:
    """Compare the limit of open files of a process with the connections that the broker accepts."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return ok("open files", "unlimited")
    connections = min(config.max_connections, USUAL_CONNECTIONS) // config.processes
    if limit < connections + OWN_FILES:
        return warning(
            "open files",
            f"the limit is {limit}: enough for about {max(0, limit - OWN_FILES)} connections of each process",
            f"ulimit -n {connections + OWN_FILES} (LimitNOFILE= in a systemd unit), or a smaller max.connections",
        )
    return ok("open files", f"the limit is {limit}")
