"""Catalogues for tests of registration: Glue by moto, a server with Unity's API, a Hive metastore.

`unity_server` answers as Unity Catalog's API 2.1 specifies, and refuses requests that lack required properties. Its own
server is in no registry of packages. `hive_metastore` runs the one that pyspark's jars contain.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from attrs import define, field

from tests.servers import free_port, parent_death_prefix

START_LIMIT_S = 90.0
PREFIX = "/api/2.1/unity-catalog/"
REQUIRED = {
    "schemas": ("name", "catalog_name"),
    "tables": ("name", "catalog_name", "schema_name", "table_type", "columns"),
}
TYPES = {
    "BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING",
    "BINARY", "DECIMAL", "ARRAY", "STRUCT", "MAP",
}  # fmt: skip


@define
class Unity:
    """The catalogue `main`; `asked` are the requests, `tokens` the tokens that came with them."""

    url: str = ""
    schemas: set[str] = field(factory=set)
    tables: dict[str, dict[str, Any]] = field(factory=dict)
    asked: list[str] = field(factory=list)
    tokens: set[str | None] = field(factory=set)
    #: The status and the content of the answers to requests whose path contains a text.
    refused: dict[str, tuple[int, Any]] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        with self._lock:
            self.asked.append(f"{method} {path}")
            for text, refusal in self.refused.items():
                if text in f"{method} {path} {body}":
                    return refusal
            kind, _, name = path.partition("/")
            match method, kind:
                case "GET", "tables" if name in self.tables:
                    return 200, self.tables[name]
                case "DELETE", "tables" if name in self.tables:
                    del self.tables[name]
                    return 200, {}
                case "POST", "schemas":
                    return self._schema(body)
                case "POST", "tables":
                    return self._table(body)
            return 404, error("NOT_FOUND", f"{name or path} not found")

    def _schema(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body["catalog_name"] != "main":
            return 404, error("CATALOG_NOT_FOUND", f"there is no catalog {body['catalog_name']}")
        if body["name"] in self.schemas:
            return 409, error("SCHEMA_ALREADY_EXISTS", "there is one")
        self.schemas.add(body["name"])
        return 200, body

    def _table(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body["catalog_name"] != "main" or body["schema_name"] not in self.schemas:
            return 404, error("SCHEMA_NOT_FOUND", f"there is no schema {body['schema_name']}")
        name = f"main.{body['schema_name']}.{body['name']}"
        if name in self.tables:
            return 409, error("TABLE_ALREADY_EXISTS", "there is one")
        if not {each["type_name"] for each in body["columns"]} <= TYPES:
            return 400, error("INVALID_ARGUMENT", "type_name")
        self.tables[name] = body
        return 200, body


def error(code: str, message: str) -> dict[str, str]:
    return {"error_code": code, "message": message}


@contextmanager
def unity_server() -> Iterator[Unity]:
    """Run a server until the block ends."""
    unity = Unity()

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            unity.tokens.add(self.headers["Authorization"])
            length = int(self.headers["Content-Length"] or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            kind = self.path.removeprefix(PREFIX)
            if not self.path.startswith(PREFIX) or (
                self.command == "POST" and not {*REQUIRED[kind]} <= body.keys()
            ):
                status, content = 400, error("INVALID_ARGUMENT", self.path)
            else:
                status, content = unity.answer(self.command, kind, body)
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = reply  # noqa: N815  names of the standard library

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        unity.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield unity
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def hive_metastore(
    folder: Path, class_path: str, program: str = "org.apache.hadoop.hive.metastore.HiveMetaStore"
) -> Iterator[str]:
    """Run a Hive metastore with a new database in a folder, and yield its URL."""
    port = free_port()
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
        "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
        "metastore.client.capability.check": "false",
        "hive.metastore.client.capability.check": "false",
        "hive.async.log.enabled": "false",
        "metastore.async.log.enabled": "false",
        "hive.metastore.warehouse.dir": f"{folder}/warehouse",
        "hive.metastore.event.db.notification.api.auth": "false",
    }
    inside = "".join(f"<property><name>{a}</name><value>{b}</value></property>" for a, b in settings.items())
    for name in ("hive-site.xml", "metastore-site.xml"):
        (folder / name).write_text(f"<configuration>{inside}</configuration>")
    words = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", f"-Dderby.system.home={folder}"]
    words += [
        "-cp",
        f"{folder}:{class_path}",
        program,
        "-p",
        str(port),
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*parent_death_prefix(), *words], stdout=log, stderr=log, cwd=folder)
    try:
        until = time.monotonic() + START_LIMIT_S
        while not listens(port):
            if process.poll() is not None or time.monotonic() > until:
                raise AssertionError((folder / "log").read_text()[-4000:])
            time.sleep(0.1)
        yield f"thrift://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
