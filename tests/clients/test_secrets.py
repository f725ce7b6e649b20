"""A broker with canaries in all its secrets, used and broken: neither its output nor Redis contains a canary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from attrs import frozen
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from tests.processes import KorvetProcess
from tests.servers import VALKEY, RedisServer, start_server

LIMIT_S = 30.0
KORVET = (sys.executable, "-m", "korvet")
CANARY = "c4n4ry"
OF_REDIS, CHANGED, OF_USER, IN_FILE, WRONG = (
    f"{CANARY}-{name}" for name in ("redis", "changed", "user", "file", "wrong")
)
KEY, UNKNOWN_KEY = (ECKey.generate_key("P-256", {"kid": name}) for name in ("key", "unknown"))

# One broker serves all tests of this module.
pytestmark = pytest.mark.xdist_group("test_secrets")


@frozen
class Watched:
    """A broker on its own Redis."""

    server: RedisServer
    process: KorvetProcess
    password_file: Path  # of Redis
    users_file: Path

    def client(self, mechanism: str) -> dict[str, object]:
        return {
            "bootstrap.servers": self.process.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
        }


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "redis.properties").write_text(f"password={OF_REDIS}\n")
    (folder / "users.properties").write_text(f"carol: {IN_FILE}\n")
    (folder / "keys").write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys").as_uri(),
        "sasl.plain.users.file": str(folder / "users.properties"),
        "connection.failed.authentication.delay.ms": "0",
    }
    server = start_server(VALKEY, tcp=True, options={"requirepass": OF_REDIS})
    try:
        add_user(server)
        with KorvetProcess(storage_url(server, folder), settings) as process:
            yield Watched(server, process, folder / "redis.properties", folder / "users.properties")
    finally:
        server.remove()


def storage_url(server: RedisServer, folder: Path) -> str:
    return f"redis://:${{file:{folder}/redis.properties:password}}@127.0.0.1:{server.port}"


def add_user(server: RedisServer) -> None:
    done = subprocess.run(
        [*KORVET, "users", "add", "alice", "--storage", f"redis://:{OF_REDIS}@127.0.0.1:{server.port}"],
        env=os.environ | {"KORVET_PASSWORD": OF_USER},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert CANARY not in done.stdout + done.stderr


def token(key: ECKey) -> Callable[[str], tuple[str, float]]:
    """Return a callback with a token whose claims contain a canary."""
    expires = int(time.time()) + 300
    claims = {"sub": "alice", "iat": expires - 300, "exp": expires, "note": WRONG}
    text = jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key, ["ES256"])
    return lambda _: (text, expires)


def refuse(settings: dict[str, object]) -> None:
    """Try to authenticate until the client reports the refusal."""
    errors: list[str] = []
    producer = Producer(settings | {"error_cb": lambda error: errors.append(error.name())})
    deadline = time.monotonic() + LIMIT_S
    while "_AUTHENTICATION" not in errors:
        assert time.monotonic() < deadline, errors
        producer.poll(0.1)


def contents(server: RedisServer) -> str:
    """Return all values in Redis as text."""
    with server.client() as client:
        readers = {
            b"string": client.get,
            b"hash": client.hgetall,
            b"stream": client.xrange,
            b"set": client.smembers,
            b"zset": lambda key: client.zrange(key, 0, -1),
        }
        return repr([(key, readers[client.type(key)](key)) for key in client.scan_iter()])


def test_no_output_contains_a_secret(watched: Watched) -> None:
    process = watched.process
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        refuse(watched.client(mechanism) | {"sasl.username": "alice", "sasl.password": WRONG})
    watched.users_file.write_text(f"{IN_FILE}\ncarol: {IN_FILE}\n")
    refuse(watched.client("PLAIN") | {"sasl.username": "carol", "sasl.password": WRONG})
    refuse(watched.client("OAUTHBEARER") | {"oauth_cb": token(UNKNOWN_KEY)})
    admin = AdminClient(watched.client("PLAIN") | {"sasl.username": "carol", "sasl.password": IN_FILE})
    (described,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    settings = described.result(LIMIT_S)
    titles = subprocess.check_output(["ps", "-eo", "args="], text=True)
    values = contents(watched.server)
    change_password(watched)
    process.wait_for_log("a line has no name or no password")

    output = "\n".join(process.log)
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"):
        assert f"authentication failed: mechanism {mechanism}, " in output
    assert (None, True) == (settings["storage"].value, settings["storage"].is_sensitive)
    assert "alice" in values
    assert "invalid username-password pair" in output
    for text in (output, titles, values, repr({name: entry.value for name, entry in settings.items()})):
        assert CANARY not in text


def change_password(watched: Watched) -> None:
    """Change the password of Redis, disconnect the broker, and then change the file with the password."""
    with redis.Redis(port=watched.server.port, password=OF_REDIS) as client:
        client.config_set("requirepass", CHANGED)
        client.client_kill_filter(_type="normal", skipme=True)
    watched.process.wait_for_log("invalid username-password pair")
    watched.password_file.write_text(f"password={CHANGED}\n")
    watched.process.wait_for_log("connected to Redis at")
