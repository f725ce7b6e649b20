"""A front of an object store's server, which injects faults: `python -m tests.lake.store_front URL`.

It forwards each request to the server at URL. `/-/faults?share=0.2&seed=1` makes it fail a share of the requests: half
of these are answered with 503 and not forwarded, the others are forwarded, and their answers are lost with the
connection. `/-/faults` answers with the numbers of both. `--ignore-conditions` removes the condition of writes that
must not replace an object.

The front adds what the emulators lack and deltalake requires. fake-gcs-server and azurite ignore the parameter of
listings that names the first object, so the front removes the objects before it. With `--google`, it translates writes
of Google's XML API, which deltalake uses, to its JSON API, because fake-gcs-server reads conditions only there. It
answers requests for a missing bucket, and for the state of an upload, as Google does: fake-gcs-server takes the latter
for the end of the upload, and stores an empty object.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, cast
from urllib.parse import parse_qs, quote, unquote, urlsplit

from attrs import define, field, frozen

CONTROL = "/-/faults"
HOP_BY_HOP = {"connection", "transfer-encoding", "host", "keep-alive", "expect", "content-length"}
GENERATION = "x-goog-if-generation-match"


Answer = tuple[int, dict[str, str], bytes]  # status, headers, content


@frozen
class Front:
    """A running front."""

    url: str

    def inject(self, share: float, seed: int) -> None:
        """Fail this share of the requests from now on."""
        self._ask(f"?share={share}&seed={seed}")

    def faults(self) -> Mapping[str, int]:
        """Return the number of requests that were refused, and of those whose answers were lost."""
        return cast(Mapping[str, int], self._ask(""))

    def _ask(self, query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{CONTROL}{query}", timeout=10) as answer:
            return json.load(answer)


@contextmanager
def front_of(server: str, *options: str) -> Iterator[Front]:
    """Run a front of the server at this URL. The options are those of the command."""
    command = [sys.executable, "-m", "tests.lake.store_front", server, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield Front(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@define
class Faults:
    """The share of the requests that fail, and how many did."""

    share: float = 0.0
    random: Random = field(factory=Random)
    counts: dict[str, int] = field(factory=lambda: {"refused": 0, "lost": 0})
    _lock: threading.Lock = field(factory=threading.Lock)

    def begin(self, share: float, seed: int) -> None:
        self.share, self.random = share, Random(seed)

    def of_request(self) -> str:
        """Return "refused", "lost", or "" for a request that does not fail."""
        with self._lock:
            number = self.random.random()
            fault = "" if number >= self.share else "refused" if number < self.share / 2 else "lost"
            if fault:
                self.counts[fault] += 1
            return fault


class Handler(BaseHTTPRequestHandler):
    """Forwards requests."""

    protocol_version = "HTTP/1.1"
    server: FrontServer

    def handle_one_request(self) -> None:
        """Handle a request, if the client has not closed the connection."""
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _forward(self) -> None:
        body = self._body()
        if self.path.startswith(CONTROL):
            self._control()
            return
        fault = self.server.faults.of_request()
        if fault == "refused":
            self._answer(503, {"Content-Type": "text/plain"}, b"injected")
            return
        status, headers, content = self._forwarded(body)
        if fault == "lost":
            self.close_connection = True
            return
        self._answer(status, headers, content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _forward  # noqa: N815  http.server's names

    def _control(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if query:
            self.server.faults.begin(float(query["share"][0]), int(query["seed"][0]))
        self._answer(200, {}, json.dumps(self.server.faults.counts).encode())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _forwarded(self, body: bytes) -> Answer:
        """Return the server's answer."""
        method, path = self.command, self.path
        headers = {name: text for name, text in self.headers.items() if name.lower() not in HOP_BY_HOP}
        if not self.server.conditional and not self._is_signed():
            headers = {name: text for name, text in headers.items() if name.lower() not in CONDITIONS}
        is_translated = (
            self.server.google and method == "PUT" and not path.startswith(("/upload/", "/storage/"))
        )
        if is_translated:
            method, path, headers = of_json_api(path, headers)
        upload = parse_qs(urlsplit(path).query).get("upload_id", [""])[0]
        if upload and method == "PUT":
            last = self.server.uploads.get(upload, (308, {}, b""))
            if last[0] == 200 or (not body and self.headers["Content-Range"] == "bytes */*"):
                return last
        connection = http.client.HTTPConnection(self.server.origin, timeout=60)
        try:
            connection.request(method, path, body, {**headers, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        found = dict(answer.getheaders())
        if "Location" in found:  # of a resumable upload
            found["Location"] = found["Location"].replace(self.server.origin, self.headers["Host"])
        if is_translated and answer.status == 200:
            written = json.loads(content)
            found |= {"ETag": written["etag"], "x-goog-generation": written["generation"]}
        elif self.server.google and answer.status == 500 and b"no bucket named" in content:
            return 404, {"Content-Type": "application/xml"}, NO_BUCKET
        elif self.command == "PUT" and answer.status == 409 and not self.server.conditional:
            # azurite verifies a signature that includes the condition, so the front cannot remove it.
            return 201, {"ETag": '"replaced"'}, b""
        elif method == "GET" and answer.status == 200:
            content = without_earlier(path, content)
        if upload and answer.status in (200, 308):
            self.server.uploads[upload] = (answer.status, found, content)
        return answer.status, found, content

    def _is_signed(self) -> bool:
        """Return True if the request has a signature of Azure's."""
        return (self.headers["Authorization"] or "").startswith("SharedKey ")

    def _answer(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, text in headers.items():
            if name.lower() == "content-length":
                length = text if self.command == "HEAD" else length
            elif name.lower() not in HOP_BY_HOP:
                self.send_header(name, text)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


NO_BUCKET = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist.</Message></Error>"
CONDITIONS = ("if-none-match", GENERATION)


def of_json_api(path: str, headers: Mapping[str, str]) -> tuple[str, str, dict[str, str]]:
    """Return method, path and headers of Google's JSON API for a write with the XML API."""
    bucket, _, name = urlsplit(path).path.lstrip("/").partition("/")
    query = f"uploadType=media&name={quote(unquote(name), safe='')}"
    rest = {}
    for header, text in headers.items():
        if header.lower() == GENERATION:
            query += f"&ifGenerationMatch={text}"
        else:
            rest[header] = text
    return "POST", f"/upload/storage/v1/b/{bucket}/o?{query}", rest


def without_earlier(path: str, listing: bytes) -> bytes:
    """Return a listing without the objects before the one at which the query lets it begin."""
    query = parse_qs(urlsplit(path).query)
    if "start-after" in query:
        first, is_included = query["start-after"][0], False
    elif "startFrom" in query:
        first, is_included = query["startFrom"][0], True
    else:
        return listing

    def kept(match: re.Match[str]) -> str:
        name = unescape(match["name"] or match["blob"])
        return match[0] if name > first or (is_included and name == first) else ""

    return ENTRY.sub(kept, listing.decode()).encode()


ENTRY = re.compile(
    r"<Contents>(?:(?!</Contents>).)*?<Key>(?P<name>[^<]*)</Key>.*?</Contents>"
    r"|<Blob>(?:(?!</Blob>).)*?<Name>(?P<blob>[^<]*)</Name>.*?</Blob>",
    re.DOTALL,
)


class FrontServer(ThreadingHTTPServer):
    """Listens for clients of the store."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, origin: str, *, google: bool, conditional: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.origin, self.google, self.conditional = origin, google, conditional
        self.faults = Faults()
        #: The last answer to each upload in parts.
        self.uploads: dict[str, Answer] = {}


def serve() -> None:
    server = FrontServer(
        urlsplit(sys.argv[1]).netloc,
        google="--google" in sys.argv,
        conditional="--ignore-conditions" not in sys.argv,
    )
    print(server.server_port, flush=True)  # noqa: T201  who started it reads that
    server.serve_forever()


if __name__ == "__main__":
    serve()
