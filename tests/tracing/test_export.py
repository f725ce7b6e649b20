"""Traces of `korvet serve`: exported over HTTP by all processes, and without the libraries."""

from __future__ import annotations

import gzip
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from attrs import define, evolve, field
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from korvet.client import Record, open_client
from korvet.server.assembly import open_server
from korvet.storage.interface import StorageUsageError
from tests.processes import KorvetProcess
from tests.tracing.spans import CONFIG


@define
class Receiver:
    """Spans that a collector has received."""

    port: int
    names: list[str] = field(factory=list)
    services: set[str] = field(factory=set)

    def take(self, data: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            for attribute in resource.resource.attributes:
                if attribute.key == "service.name":
                    self.services.add(attribute.value.string_value)
            self.names += [span.name for scope in resource.scope_spans for span in scope.spans]


@contextmanager
def collector() -> Iterator[Receiver]:
    """Receive OTLP over HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.take(gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("processes", [1, 2])
async def test_spans_are_exported_before_the_broker_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    with collector() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
        with KorvetProcess(
            f"embedded:{tmp_path / 'data'}",
            options=("--set", "tracing.exporter=otlp", "--processes", str(processes)),
        ) as broker:
            async with open_client(broker.bootstrap_servers) as client:
                await client.produce("orders", [Record(value=b"1")], create_topic=True)
            assert 0 == broker.stop()

    assert {"korvet"} == receiver.services
    assert {"ApiVersions", "Metadata", "Produce", "storage begin_append", "storage append"} <= {
        *receiver.names
    }


async def test_missing_libraries_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "opentelemetry" else found(name)
    )
    with pytest.raises(StorageUsageError, match=r"^tracing.exporter requires: pip install 'korvet\[otel\]'$"):
        async with open_server(evolve(CONFIG, tracing_exporter="otlp")):
            pytest.fail("it serves without the libraries")
