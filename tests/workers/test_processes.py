"""The parent of a broker's processes with test workers, and the messages between them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from korvet.broker.broker import open_broker
from korvet.broker.limits import share_of
from korvet.config import Config, ConfigError, Listener
from korvet.server.listeners import ListenError, Use, held_ports, open_listeners
from korvet.server.server import Server
from korvet.storage.interface import StorageUsageError
from korvet.storage.memory import MemoryStorage
from korvet.workers.control import Control, Drain, Drained, End, Message, Ready, Refused, Setup
from korvet.workers.parent import how, private_folder

LIMIT_S = 30.0

# A broker of two processes whose workers are functions of the test's own.
PROGRAM = """
import logging, os, signal, socket, sys
import trio
from korvet.cli import report, innermost
from korvet.config import Config, Listener
from korvet.workers import parent
from korvet.workers.control import Control, Drain, Drained, End, Ready, Refused
from korvet.workers.forking import Forker
from korvet.storage.interface import StorageUsageError

{worker}

async def main(forker):
    async with trio.open_nursery() as nursery:
        listeners = (Listener("PLAINTEXT", "127.0.0.1", 0),)
        config = Config(storage="unix:///nowhere", processes=2, listeners=listeners, shutdown_deadline_ms=1000)
        ready = await nursery.start(parent.run, config, forker)
        print("ready", *ready.lines, flush=True)
        {then}

parent.FIRST_PAUSE_S = parent.LONGEST_PAUSE_S = 0.01
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
try:
    trio.run(main, Forker.start(lambda sock: trio.run(work, sock)))
except BaseException as error:
    sys.exit(report(innermost(error)))
"""

# A parent that ends while a report of the forker is unread.
LEAVES_A_REPORT = """
import select, socket
from korvet.workers.forking import ASK, Forker

forker = Forker.start(lambda sock: None)
ours, theirs = socket.socketpair()
socket.send_fds(forker.sock, [ASK], [theirs.fileno()])
select.select([forker.sock], [], [])
"""

OBEYS = """
async def work(sock):
    control = Control.on(sock)
    setup = await control.receive()
    await control.send(Ready([f"line of {setup.index}"], "127.0.0.1:1"))
    while (message := await control.receive()) is not None:
        os.write(1, f"told {setup.index} {message}\\n".encode())  # whole, beside those of others
        if isinstance(message, Drain):
            await control.send(Drained())
        if isinstance(message, End):
            return
"""


@contextmanager
def program(worker: str, then: str = "") -> Iterator[subprocess.Popen[str]]:
    """Run a broker with such workers, and end all its processes after the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(worker=worker, then=then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return the exit status and the output, once it and all its child processes have ended."""
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def lines_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """Return its output up to a line that starts with the given text."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith(wanted):
            return lines
    raise AssertionError(lines)


# --- The parent -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_workers_are_drained_before_any_is_ended() -> None:
    with program(OBEYS) as process:
        lines_until(process, "ready line of 0")
        process.send_signal(signal.SIGTERM)
        status, out, err = ended(process)

    assert (0, "") == (status, err)
    assert ["Drain", "Drain", "End", "End"] == [
        line.split()[2].split("(")[0] for line in out.splitlines() if line.startswith("told")
    ], out


@pytest.mark.slow
def test_broker_ends_with_one_line_when_a_worker_keeps_failing() -> None:
    with program("async def work(sock): os._exit(7)") as process:
        status, out, err = ended(process)

    assert 1 == status
    assert "starting it again" in out
    assert err.endswith("has ended: with status 7, for the 6th time in a row; so korvet ends\n"), err


@pytest.mark.slow
def test_refusal_of_a_worker_is_the_last_line_of_the_broker() -> None:
    refused = """
async def work(sock):
    control = Control.on(sock)
    await control.receive()
    await control.send(Refused(StorageUsageError("there is no such folder")))
"""
    with program(refused) as process:
        status, _, err = ended(process)

    assert (2, "korvet: there is no such folder\n") == (status, err)


@pytest.mark.slow
def test_worker_that_does_not_end_is_killed() -> None:
    deaf = OBEYS.replace("    while (", "    await trio.sleep_forever()\n    while (")
    with program(deaf.replace("async def", "parent.GRACE_S = 0\n\nasync def")) as process:
        lines_until(process, "ready")
        process.send_signal(signal.SIGTERM)
        status, out, _ = ended(process)

    assert 0 == status
    assert 2 == out.count("has not ended in time; killing it")


@pytest.mark.slow
def test_workers_end_before_the_parent_ends_with_an_error() -> None:
    with program(OBEYS, 'raise OSError(5, "no such terminal")') as process:
        status, out, err = ended(process)

    assert (1, "korvet: no such terminal\n") == (status, err)
    assert "killing it" not in out


@pytest.mark.slow
def test_broker_ends_with_one_line_when_the_fork_server_is_killed() -> None:
    with program(OBEYS) as process:
        lines_until(process, "ready")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        status, _, err = ended(process)

    assert 1 == status
    assert "korvet: the process that korvet's processes are forked from has ended; so korvet ends\n" == err


def test_forker_ends_silently_when_its_parent_has_unread_reports() -> None:
    # `run` returns when the forker, too, has closed the streams that it inherited.
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_A_REPORT], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )

    assert ("", "") == (done.stdout, done.stderr)


def test_exit_status_is_described() -> None:
    assert ["killed by SIGKILL", "with status 3"] == [how(-9), how(3)]


def test_socket_folder_is_private_and_removed_with_its_contents() -> None:
    with private_folder() as folder:
        assert 0o700 == folder.stat().st_mode & 0o777
        (folder / "1.sock").touch()

    assert not folder.exists()


def test_too_long_socket_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with (
        pytest.raises(ListenError, match="too long for them; set TMPDIR to a shorter path"),
        private_folder(),
    ):
        pass

    assert not list(deep.iterdir())


@pytest.mark.parametrize("limit, expected", [(10, 4), (9, 3), (1, 1)])
async def test_limits_are_divided_among_processes(limit: int, expected: int) -> None:
    config = Config(storage="unix:///nowhere", processes=3, max_connections=limit)
    server = Server(await open_broker(MemoryStorage(), config), [])

    assert expected == server._admission._all.number.limit
    assert -1 == share_of(-1, 3)


@pytest.mark.parametrize("storage", ["memory://", "memory://?max_bytes=5"])
def test_memory_storage_is_refused_with_several_processes(storage: str) -> None:
    with pytest.raises(ConfigError, match=r"^\$\.processes: 2 processes cannot share"):
        Config(storage=storage, processes=2)


# --- Messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Setup(Config(storage="unix:///s", processes=3, node_id=7), 2, Path("folder"), "run"),
        Ready(("one", "two"), "localhost:9092"),
        Drain(),
        Drain(at_once=True),
        Drained(),
        End(),
    ],
    ids=repr,
)
async def test_messages_are_received_completely_and_in_order(message: Message) -> None:
    ours, theirs = socket.socketpair()
    sending, receiving = Control.on(ours), Control.on(theirs)
    async with sending.stream, receiving.stream, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(sending.send, message)
        assert [message] * 3 == [await receiving.receive() for _ in range(3)]


async def test_errors_are_sent_with_their_messages() -> None:
    ours, theirs = socket.socketpair()
    sending, receiving = Control.on(ours), Control.on(theirs)
    async with sending.stream, receiving.stream:
        await sending.send(Refused(StorageUsageError("no")))
        message = await receiving.receive()

    assert isinstance(message, Refused)
    assert (StorageUsageError, "no") == (type(message.error), str(message.error))


async def test_closed_peer_is_reported_and_messages_to_it_are_dropped() -> None:
    ours, theirs = socket.socketpair()
    control = Control.on(ours)
    async with control.stream:
        theirs.close()
        await control.send(Drained())
        await control.send(Drained())

        assert await control.receive() is None


async def test_partial_message_is_not_returned() -> None:
    ours, theirs = socket.socketpair()
    control = Control.on(ours)
    async with control.stream, trio.open_nursery() as nursery:
        received: list[Message | None] = []

        async def receive() -> None:
            received.append(await control.receive())

        nursery.start_soon(receive)
        theirs.send(b"\0\0\0\x10abc")
        await wait_all_tasks_blocked()
        assert not received
        theirs.close()

    assert [None] == received


# --- Ports ------------------------------------------------------------------------------------------------


def test_held_port_is_bound_only_by_shared_listeners() -> None:
    with held_ports(Config(listeners=(Listener("PLAINTEXT", "localhost", 0),))) as found:
        assert found.listeners[0].port > 0
        shared = [open_listeners(found, Use.SHARED) for _ in range(3)]
        with pytest.raises(ListenError, match="in use"):
            open_listeners(found)
        with pytest.raises(ListenError, match="in use"), held_ports(found):
            pass
        for bound in shared:
            bound[0].close()


def test_held_port_refuses_connections_until_a_listener_opens() -> None:
    with held_ports(Config(listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),))) as found:
        address = ("127.0.0.1", found.listeners[0].port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        (bound,) = open_listeners(found, Use.SHARED)
        socket.create_connection(address).close()
        bound.close()
