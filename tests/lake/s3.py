"""moto as an S3 store in a separate process, because deltalake holds the interpreter lock in some requests.

`python -m tests.lake.s3` honours If-None-Match; with `--ignore-conditions` it ignores the header.
`--fails PATTERN` refuses the first request of each kind that matches, `--refuses PATTERN` all that match.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

BUCKET = "lake"


def options(port: int) -> dict[str, str]:
    """Return the options for the store on this port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }


@contextmanager
def s3_store(*, conditional: bool, fails: str = "", refuses: str = "") -> Iterator[dict[str, str]]:
    """Run a store with the bucket `lake`, and yield the options for it.

    The store refuses the first request of each "METHOD KEY" that matches the regular expression `fails`, and each
    request that matches `refuses`.
    """
    command = [sys.executable, "-m", "tests.lake.s3", *([] if conditional else ["--ignore-conditions"])]
    command += ["--fails", fails] if fails else []
    command += ["--refuses", refuses] if refuses else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield options(int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


REFUSAL = b"<Error><Code>AccessDenied</Code><Message>no rights</Message></Error>"


def serve(*, conditional: bool, fails: str, refuses: str) -> None:
    import boto3  # noqa: PLC0415
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415  only this process needs it
    from werkzeug.serving import make_server  # noqa: PLC0415

    application = DomainDispatcherApplication(create_backend_app)
    # moto checks for a key and then writes it; in S3 this is one atomic step.
    one_at_a_time = threading.Lock()

    refused: set[str] = set()

    def store(environment: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not conditional:
            environment.pop("HTTP_IF_NONE_MATCH", None)
        request = f"{environment['REQUEST_METHOD']} {re.sub(r'probe-[0-9a-f]+', 'probe-', environment['PATH_INFO'])}"
        fails_once = fails and re.search(fails, request) and request not in refused
        if fails_once or (refuses and re.search(refuses, request)):
            refused.add(request)
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [REFUSAL]
        with one_at_a_time if conditional else nullcontext():
            answer: Iterable[bytes] = application(environment, start_response)
            return answer

    server = make_server("127.0.0.1", 0, store, threaded=True)
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{server.server_port}",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        region_name="us-east-1",
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client.create_bucket(Bucket=BUCKET)
    print(server.server_port, flush=True)  # noqa: T201  who started it reads that
    threading.Event().wait()


if __name__ == "__main__":
    patterns = {
        name: sys.argv[sys.argv.index(f"--{name}") + 1] if f"--{name}" in sys.argv else ""
        for name in ("fails", "refuses")
    }
    serve(conditional="--ignore-conditions" not in sys.argv, **patterns)
