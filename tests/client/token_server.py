"""A server that gives tokens for client credentials, over HTTPS."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import attrs
import trustme
from attrs import define, field

from korvet.client.token_endpoint import Grant

AUTHORITY = trustme.CA()
TRUSTED = AUTHORITY.cert_pem.bytes().decode()

Answer = tuple[int, dict[str, str], bytes]


def granted(text: str, **more: object) -> Answer:
    return 200, {}, json.dumps({"access_token": text, "token_type": "Bearer", **more}).encode()


@define
class TokenServer:
    """An HTTPS server that gives these answers, the last one again and again, and notes the requests."""

    answers: list[Answer]
    requests: list[tuple[str, dict[str, list[str]]]] = field(factory=list)
    url: str = ""

    def grant(self, **settings: Any) -> Grant:
        return attrs.evolve(Grant(self.url, "alice", "hush:é", "kafka", TRUSTED), **settings)

    def answer(self, login: str, form: str) -> Answer:
        self.requests.append((login, parse_qs(form)))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def token_server() -> Iterator[TokenServer]:
    """Run a server that gives two tokens, the second one again and again."""
    made = TokenServer([granted("one", expires_in=300), granted("two", expires_in=300)])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, headers, body = made.answer(self.headers["Authorization"], form)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("localhost").configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        made.url = f"https://localhost:{listening.server_port}/token"
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield made
        listening.shutdown()
        thread.join()
