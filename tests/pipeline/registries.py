"""A schema registry as far as readers and Confluent's serializers need it, and a list of what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid5

from attrs import define, field


@define
class FakeRegistry:
    """Schemas by id and by subject; `asked` are the paths that were, `credentials` what was sent with the last."""

    url: str = ""
    by_id: dict[int, dict[str, Any]] = field(factory=dict)
    by_subject: dict[str, list[dict[str, Any]]] = field(factory=dict)
    asked: list[str] = field(factory=list)
    credentials: str | None = None
    fails_with: int | None = None

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
    ) -> int:
        """Add a version of a subject; its id."""
        for schema in self.by_subject.get(subject, []):
            if (text, references or []) == (schema["schema"], schema.get("references", [])):
                return int(schema["id"])
        number = 100_000 + len(self.by_id)
        schema = {"schema": text, "id": number, "guid": guid(number)}
        if kind != "AVRO":  # which registries do not say
            schema["schemaType"] = kind
        if references:
            schema["references"] = references
        versions = self.by_subject.setdefault(subject, [])
        versions.append({**schema, "subject": subject, "version": len(versions) + 1})
        self.by_id[number] = schema
        return number

    def answer(self, path: str, posted: Any = None) -> tuple[int, Any]:
        self.asked.append(path)
        match [unquote(step) for step in urlsplit(path).path.strip("/").split("/")]:
            case _ if self.fails_with:
                return self.fails_with, {"error_code": self.fails_with}
            case ["subjects", subject, "versions"] if posted is not None:
                kind, references = posted.get("schemaType", "AVRO"), posted.get("references")
                return 200, self.by_id[self.register(subject, posted["schema"], kind, references)]
            case ["subjects", subject] if posted is not None:
                same = [each for each in self.by_subject[subject] if each["schema"] == posted["schema"]]
                return 200, same[0]
            case ["schemas", "guids", text]:
                same = [each for each in self.by_id.values() if each["guid"] == text]
                return (200, same[0]) if same else (404, {"error_code": 40403})
            case ["schemas", "ids", number] if int(number) in self.by_id:
                return 200, self.by_id[int(number)]
            case ["subjects", subject, "versions", "latest"] if subject in self.by_subject:
                return 200, self.by_subject[subject][-1]
            case ["subjects", subject, "versions", version] if subject in self.by_subject:
                return 200, self.by_subject[subject][int(version) - 1]
        return 404, {"error_code": 40403}


@contextmanager
def registry() -> Iterator[FakeRegistry]:
    """Run a registry until the block ends."""
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(None)

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, posted: Any) -> None:
            fake.credentials = self.headers["Authorization"]
            status, body = fake.answer(self.path, posted)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def guid(number: int) -> str:
    """The GUID of a schema."""
    return str(uuid5(UUID(int=0), str(number)))


def framed(number: int, payload: bytes, indexes: bytes = b"") -> bytes:
    """Frame a value as Confluent's serializers do."""
    return b"\0" + number.to_bytes(4, "big") + indexes + payload
