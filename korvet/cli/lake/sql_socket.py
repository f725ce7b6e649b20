"""SQL in the session of a run, for programs of the same user: `korvet lake run --sql-socket`.

A client sends a `Request`, a line of JSON. The run answers with lines of JSON: the names of the columns, each row as
the list of its values, and an `End`. The client needs neither Spark nor pyarrow, whose imports take a second.
"""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click
from attrs import asdict, frozen

from korvet.cli.lake.options import parsed_location
from korvet.cli.lake.rows import plain
from korvet.cli.lake.running import errors_in_one_line
from korvet.cli.options import check_addresses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from korvet.pipeline.views import Lake

SCHEME = "unix:"
# Seconds between attempts to cancel the jobs of a client that has left.
CANCEL_INTERVAL_S = 0.5


@frozen
class Request:
    """A statement, and the options of `korvet lake query`. The run reads options of stores that it lacks from its own
    environment.
    """

    sql: str
    lake: str
    typed: str | None
    storage_texts: Sequence[str]
    bootstrap_servers: str | None
    security: Mapping[str, str]
    timeout_s: float

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Parse the line that a client has sent. Raises ClickException."""
        try:
            return cls(**json.loads(line))
        except (TypeError, ValueError):
            raise click.ClickException(
                "The run does not understand the query: it is of another version."
            ) from None

    @classmethod
    def of(cls, sql: str, lake: str, typed: str | None, *others: Any) -> Self:
        """Return a request whose paths are absolute: the run has another working directory."""
        return cls(sql, _absolute(lake), None if typed is None else _absolute(typed), *others)

    def tables(self) -> Lake:
        """Return the lake. Raises UsageError, LakeError."""
        from korvet.client import security_of
        from korvet.pipeline.views import Lake

        if self.bootstrap_servers is not None:
            check_addresses(self.bootstrap_servers)
        texts = tuple(self.storage_texts)
        typed = None if self.typed is None else parsed_location(self.typed, texts)
        lake = parsed_location(self.lake, texts)
        return Lake(lake, self.bootstrap_servers, typed, security_of(self.security), self.timeout_s)


@frozen
class End:
    """The end of an answer: the exit status of the command and, unless it is 0, the error."""

    status: int = 0
    error: str = ""


def _absolute(text: str) -> str:
    return text if "://" in text or not text.strip() else str(Path(text).expanduser().absolute())


def ask(url: str, request: Request) -> tuple[list[str], list[dict[str, Any]]]:
    """Send a request to the socket at unix:PATH. Return the columns and the rows of the result.

    Exits with the status and the error of the run, if it has one. Raises ClickException.
    """
    path = url.removeprefix(SCHEME)
    if not path:
        raise click.BadParameter(
            f"{url!r} is not the path of a socket; accepted: unix:PATH", param_hint="--remote"
        )
    columns: list[str] = []
    rows: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            raise click.ClickException(
                f"No korvet lake run answers at {path}: {error.strerror or error}."
            ) from None
        connection.sendall(_line(asdict(request)))
        with connection.makefile("rb") as lines, suppress(ConnectionError):
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                match json.loads(line):
                    case {"status": 0}:
                        return columns, rows
                    case {"status": int(status), "error": str(text)}:
                        click.echo(text, err=True)
                        sys.exit(status)
                    case {"columns": list(names)}:
                        columns = names
                    case values:
                        rows.append(dict(zip(columns, values, strict=True)))
    raise click.ClickException(f"The run at {path} ended before its answer did.")


def _line(value: object) -> bytes:
    # Without `default`, values such as intervals have no JSON.
    return json.dumps(value, ensure_ascii=False, default=str).encode() + b"\n"


@contextmanager
def answering(path: str | None, session: Callable[[], SparkSession]) -> Iterator[None]:
    """Answer requests at a socket for the time of the block. Without a path, do nothing. Raises UsageError."""
    if path is None:
        yield
        return
    with _Server(path, session) as server:
        thread = threading.Thread(target=server.serve_forever, name="sql")
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            Path(path).unlink(missing_ok=True)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The socket, with a thread for each connection."""

    daemon_threads = True  # the end of the session ends them

    def __init__(self, path: str, session: Callable[[], SparkSession]) -> None:
        self.session = session
        self.path = path
        _remove_unused(path)
        try:
            super().__init__(path, _Answering)
        except OSError as error:
            raise _refused(path, error.strerror or str(error)) from None

    def server_bind(self) -> None:
        super().server_bind()
        # Only the run's user may connect. No client can before the socket listens.
        Path(self.path).chmod(0o600)


def _remove_unused(path: str) -> None:
    """Remove the socket of a run that was killed. Raises UsageError if a program listens at the socket."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX) as connection, suppress(ConnectionRefusedError):
        connection.connect(path)
        raise _refused(path, "Another program listens there")
    Path(path).unlink(missing_ok=True)


def _refused(path: str, reason: str) -> click.UsageError:
    return click.BadParameter(f"{path}: {reason}.", param_hint="--sql-socket")


class _Answering(socketserver.StreamRequestHandler):
    """A connection with one request."""

    server: _Server

    def handle(self) -> None:
        from korvet.cli import explain

        with suppress(OSError):  # the client has left
            try:
                self._answer(Request.parse(self.rfile.readline()))
            except Exception as error:  # noqa: BLE001  the client prints it
                end = End(*explain(error))
            else:
                end = End()
            self.wfile.write(_line(asdict(end)))

    def _answer(self, request: Request) -> None:
        from py4j.protocol import Py4JError

        try:
            self._write_rows(request)
        except Py4JError as error:  # pyspark converts all others
            raise click.ClickException("The session of the run has ended.") from error

    def _write_rows(self, request: Request) -> None:
        from korvet.pipeline.query import answered

        spark = self.server.session().newSession()  # views of other clients have the same names
        ended = threading.Event()
        tag = f"korvet-sql-{id(self)}"
        spark.sparkContext.addJobTag(tag)  # of this thread's jobs
        watching = threading.Thread(target=self._cancel_if_left, args=(spark, tag, ended), daemon=True)
        watching.start()
        try:
            with errors_in_one_line():
                columns, rows = answered(spark, request.tables(), request.sql)
                self.wfile.write(_line({"columns": columns}))
                for row in rows:
                    self.wfile.write(_line([plain(row[name]) for name in columns]))
        finally:
            ended.set()

    def _cancel_if_left(self, spark: SparkSession, tag: str, ended: threading.Event) -> None:
        """Cancel the jobs of a client that closes the connection before the answer ends."""
        with suppress(OSError):
            self.connection.recv(1)
        while not ended.wait(CANCEL_INTERVAL_S):
            spark.sparkContext.cancelJobsWithTag(tag)
