"""The process that reads tables for a broker: `python -m korvet.lake.remote_worker URL`.

It is a separate process because decoding holds the interpreter lock, and because the libraries that read tables take
more memory than the broker does. It exits at the end of its standard input. Frames in both directions:

    4 bytes   length of the JSON     4 bytes   length of the data     JSON     data

A request is `{"id": …, "verb": …, "arguments": […]}`. The response is `{"id": …, "result": …}`, for `read` with the
batches as data, or `{"id": …, "error": …, "message": …}` with the name of the LakeError. Requests are processed
concurrently, and responses are sent in the order in which they finish.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, BinaryIO
from uuid import UUID

from attrs import define, field

from korvet.lake.errors import LakeError
from korvet.lake.location import Location
from korvet.lake.remote import ColdReader
from korvet.lake.remote_frames import HEAD, frame

# Threads. Reading spends most of its time waiting for the store.
AT_ONCE = 4


@define(eq=False)
class Worker:
    """Read requests from `source` until it ends, and write responses to `sink`."""

    reader: ColdReader
    source: BinaryIO
    sink: BinaryIO
    _lock: Lock = field(factory=Lock)

    def run(self) -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            while (request := self._next()) is not None:
                threads.submit(self._answer, request)

    def _next(self) -> dict[str, Any] | None:
        head = self.source.read(HEAD.size)
        if len(head) < HEAD.size:
            return None
        size, _ = HEAD.unpack(head)
        body = self.source.read(size)
        return None if len(body) < size else json.loads(body)

    def _answer(self, request: dict[str, Any]) -> None:
        data = b""
        try:
            result, data = self._result(request["verb"], request["arguments"])
            answer = {"id": request["id"], "result": result}
        except LakeError as error:
            answer = {"id": request["id"], "error": type(error).__name__, "message": str(error)}
        except OSError as error:
            answer = {"id": request["id"], "error": "Unreachable", "message": str(error)}
        with self._lock:
            self.sink.write(frame(answer, len(data)))
            self.sink.write(data)
            self.sink.flush()

    def _result(self, verb: str, arguments: list[Any]) -> tuple[Any, bytes]:
        topic, topic_id, *rest = arguments
        if verb == "read":
            data, next_offset = self.reader.read(topic, UUID(topic_id), *rest)
            return next_offset, data
        if verb == "refresh":
            logs = self.reader.refresh(topic, UUID(topic_id))
            return [[partition, log.start, log.end, log.chained] for partition, log in logs.items()], b""
        verbs: dict[str, Callable[..., Any]] = {
            "first": self.reader.first,
            "seek_ts": self.reader.seek_ts,
            "seek_max_ts": self.reader.seek_max_ts,
        }
        return verbs[verb](topic, UUID(topic_id), *rest), b""


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    # The broker handles Ctrl-C; this process exits when the broker closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Libraries that print to standard output must not corrupt the frames.
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    Worker(ColdReader(Location.parse(sys.argv[1])), sys.stdin.buffer, sink).run()


if __name__ == "__main__":
    main()
