"""Requests to an ASGI application without sockets."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import trio
from attrs import define, frozen

HOST = "localhost:8080"
FORM = "application/x-www-form-urlencoded"


@frozen
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@define
class Browser:
    """Sends requests with a cookie, as a browser on the same site does."""

    app: Any
    cookie: str = ""
    host: str = HOST

    async def get(self, url: str, **headers: str) -> Answer:
        return await self.send("GET", url, headers)

    async def post(self, url: str, fields: Mapping[str, str], **headers: str) -> Answer:
        body = urlencode(fields).encode()
        return await self.send(
            "POST", url, {"content-type": FORM, "origin": f"http://{self.host}", **headers}, body
        )

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        path, _, query = url.partition("?")
        given = {"host": self.host, **headers} | ({"cookie": self.cookie} if self.cookie else {})
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode("utf-8", "surrogateescape"),
            "headers": [
                (name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in given.items()
            ],
            "server": ("localhost", 8080),
            "client": ("127.0.0.1", 1),
        }
        requests = iter([{"type": "http.request", "body": body, "more_body": False}])
        messages: list[Any] = []

        async def receive() -> Any:
            for request in requests:
                return request
            return await trio.sleep_forever()

        async def keep(message: Any) -> None:
            messages.append(message)

        await self.app(scope, receive, keep)
        pairs = [(name.decode(), value.decode("latin-1")) for name, value in messages[0]["headers"]]
        content = b"".join(message.get("body", b"") for message in messages[1:])
        answer = Answer(messages[0]["status"], dict(pairs), content)
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row of the first table, without tags."""
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [html.unescape(re.sub(r"<[^>]*>", " ", cell)).strip() for cell in re.split(r"</t[hd]>", row)[:-1]]
        for row in body.split("</tr>")[:-1]
    ]
