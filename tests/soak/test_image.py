"""The container image: built by `deploy/build-image` and run by an OCI runtime, with a mapped port.

Only `make soak` builds it: building takes one to four minutes, installing buildah half a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/korvet-test"
TOOLS = {
    "buildah": "buildah",
    "crun": "crun",
    "mmdebstrap": "mmdebstrap",
    "kcat": "kcat",
    "unshare": "util-linux",
}
BUILD_LIMIT_S = 900.0
LIMIT_S = 60.0
USER = 10001
RECORDS = 2_000
MOST_COMPRESSED_BYTES = 100_000_000
# crun refuses the hybrid of both versions of cgroups, and containers of this test need none.
RUNTIME = [
    "unshare", "--mount", "sh", "-c",
    'umount /sys/fs/cgroup/unified 2>/dev/null; exec crun --cgroup-manager=disabled "$@"', "crun",
]  # fmt: skip
# What engines do for `-p PORT:9092`: connections to a socket of the host go to the container's network.
FORWARD = """
import asyncio, socket, sys

async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()

async def forward(reader, writer):
    try:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", 9092)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

async def main():
    server = await asyncio.start_server(forward, sock=socket.socket(fileno=int(sys.argv[1])))
    await server.serve_forever()

asyncio.run(main())
"""


def output(*command: str, limit_s: float = LIMIT_S) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert 0 == done.returncode, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@define
class Container:
    """A container of the image, run as `podman run --read-only --tmpfs /tmp -v DATA:/data -p PORT:9092` would."""

    config: dict[str, Any]
    root: str
    folder: Path
    data: Path
    listening: socket.socket
    name: str
    process: subprocess.Popen[str] = field(init=False)
    forwarder: subprocess.Popen[bytes] = field(init=False)

    @property
    def port(self) -> int:
        """The port of the host."""
        port: int = self.listening.getsockname()[1]
        return port

    def start(self, **environment: str) -> None:
        """Start the broker, and return once it serves."""
        variables = self.config["Env"] + [f"{name}={value}" for name, value in environment.items()]
        uid = int(self.config["User"])
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/data", "type": "bind", "source": str(self.data), "options": ["rbind", "rw"]},
        ]
        spec = {
            "ociVersion": "1.0.2",
            "root": {"path": self.root, "readonly": True},
            "process": {
                "user": {"uid": uid, "gid": uid},
                "args": self.config["Entrypoint"] + self.config["Cmd"],
                "env": variables,
                "cwd": "/",
                "noNewPrivileges": True,
                "capabilities": {},
            },
            "mounts": mounts,
            "linux": {"namespaces": [{"type": each} for each in ("pid", "mount", "ipc", "uts", "network")]},
        }
        (self.folder / "config.json").write_text(json.dumps(spec))
        self.process = subprocess.Popen(
            [*RUNTIME, "run", "--bundle", str(self.folder), self.name],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if "clients connect to" in line:
                break
        else:
            pytest.fail("".join(lines))
        pid = json.loads(output(*RUNTIME, "state", self.name))["pid"]
        self.forwarder = subprocess.Popen(
            [
                "nsenter",
                f"--net=/proc/{pid}/ns/net",
                sys.executable,
                "-c",
                FORWARD,
                str(self.listening.fileno()),
            ],
            pass_fds=[self.listening.fileno()],
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container as its user."""
        user = f"{USER}:{USER}"
        variables = [option for each in self.config["Env"] for option in ("--env", each)]
        return subprocess.run(
            [*RUNTIME, "exec", "--user", user, *variables, self.name, *command],
            capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM, as engines do, and return the exit status and the rest of the log."""
        output(*RUNTIME, "kill", self.name, "TERM")
        assert self.process.stdout is not None
        with self.process.stdout as rest:
            log = rest.read()
        self.forwarder.terminate()
        self.forwarder.wait(LIMIT_S)
        return self.process.wait(LIMIT_S), log


@pytest.fixture(scope="module")
def image() -> dict[str, Any]:
    """Build the image, and return its configuration."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    assert not missing, f"this test needs root and: apt-get install {' '.join(missing)}"
    # Isolation by chroot works in every kernel; what runs in the container is run with namespaces below.
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(
        [ROOT / "deploy/build-image", IMAGE],
        env=environment, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stdout[-2000:] + done.stderr[-4000:]
    config: dict[str, Any] = json.loads(output("buildah", "inspect", "--type", "image", IMAGE))["Docker"][
        "config"
    ]
    return config


@pytest.fixture
def container(image: dict[str, Any], tmp_path: Path) -> Iterator[Container]:
    with mounted() as root, socket.create_server(("127.0.0.1", 0)) as listening:
        data = tmp_path / "data"
        data.mkdir(mode=0o700)
        os.chown(data, USER, USER)
        name = f"korvet-test-{os.getpid()}"
        yield Container(image, root, tmp_path, data, listening, name)
        subprocess.run(
            [*RUNTIME, "delete", "--force", name], capture_output=True, timeout=LIMIT_S, check=False
        )


@contextmanager
def mounted() -> Iterator[str]:
    """Mount the image's root."""
    name = output("buildah", "from", IMAGE).strip()
    try:
        yield output("buildah", "mount", name).strip()
    finally:
        output("buildah", "rm", name)


def kcat(port: int, *options: str, stdin: str = "") -> list[str]:
    done = subprocess.run(
        ["kcat", "-b", f"localhost:{port}", *options],
        input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    return done.stdout.splitlines()


def test_image_is_small(image: dict[str, Any], tmp_path: Path) -> None:
    output("buildah", "push", "--quiet", "--format", "oci", IMAGE, f"dir:{tmp_path}", limit_s=300)
    size = sum(file.stat().st_size for file in tmp_path.iterdir())

    assert str(USER) == image["User"]
    assert size < MOST_COMPRESSED_BYTES


def test_container_serves_clients_of_a_mapped_port_and_keeps_their_records(container: Container) -> None:
    records = [f"record {number}" for number in range(RECORDS)]
    advertised = {"KORVET_ADVERTISED_LISTENERS": f"localhost:{container.port}"}

    container.start(**advertised)
    assert f"{USER}\n" == container.run("id", "-u").stdout
    refused = container.run("touch", "/opt/korvet/file")
    assert (1, True) == (refused.returncode, "Read-only file system" in refused.stderr)
    _, *check = container.config["Healthcheck"]["Test"]
    healthy = container.run(*check)
    assert 0 == healthy.returncode, healthy.stderr
    kcat(container.port, "-P", "-t", "words", stdin="\n".join(records))
    assert records == kcat(container.port, "-C", "-t", "words", "-e", "-q")
    status, log = container.stop()
    assert (0, True) == (status, f"{signal.SIGTERM.name}: ending" in log)

    container.start(**advertised)
    assert records == kcat(container.port, "-C", "-t", "words", "-e", "-q")
    assert 0 == container.stop()[0]
    assert {USER} == {path.stat().st_uid for path in container.data.rglob("*")}
