"""The process that reads tables for a broker: `python -m korvet.lake.remote_worker URL`.

It is a separate process because decoding holds the interpreter lock, and because the libraries that read tables take
more memory than the broker does. Its standard input is a socket, over which it answers requests
(`korvet.concurrency.rpc`). It exits when the broker closes that socket.

The verbs are the methods of `RemoteReader`, with their arguments and results.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys

import trio

from korvet.concurrency.rpc import Parked, Question, answer_stream
from korvet.lake.errors import LakeError
from korvet.lake.location import Location
from korvet.lake.remote import RemoteReader
from korvet.lake.remote_values import Failure

# Threads. Reading spends most of its time waiting for the store.
AT_ONCE = 4
VERBS = ("refresh", "read", "first", "seek_ts", "seek_max_ts")


def result_of(reader: RemoteReader, question: Question) -> object:
    """Return the result of a request, or its Failure."""
    if question.verb not in VERBS:
        raise ValueError(f"unknown verb {question.verb!r}")
    try:
        return getattr(reader, question.verb)(*question.arguments)
    except (LakeError, OSError) as error:
        return Failure(str(error))


async def serve(url: str, stream: trio.SocketStream) -> None:
    """Answer requests about the tables at `url` until the broker closes the stream."""
    reader = RemoteReader(Location.parse(url))
    threads = trio.CapacityLimiter(AT_ONCE)

    async def answer(question: Question, _: Parked) -> object:
        return await trio.to_thread.run_sync(
            result_of, reader, question, limiter=threads, abandon_on_cancel=True
        )

    await answer_stream(stream, answer, trio.move_on_after)


async def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    # The broker handles Ctrl-C; this process exits when the broker closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The broker's standard output is not for messages of libraries.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    inherited = trio.socket.from_stdlib_socket(socket.socket(fileno=os.dup(sys.stdin.fileno())))
    await serve(sys.argv[1], trio.SocketStream(inherited))


if __name__ == "__main__":
    trio.run(main)
