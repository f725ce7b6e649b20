"""Object stores for the tests of `tests/lake/test_stores.py`: moto, and those that another program has started.

`make conformance PARTS=stores` starts fake-gcs-server and azurite and names them in the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from attrs import field, frozen

from korvet.lake.location import Location
from tests.lake.s3 import s3_store
from tests.lake.store_front import Front, front_of

AZURE_ACCOUNT = "devstoreaccount1"
#: The key that azurite accepts by default, which is public.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
#: URLs of running servers by kind, as JSON.
RUNNING: Mapping[str, str] = json.loads(os.environ.get("LAKE_STORES", "{}"))
KINDS: Sequence[str] = (os.environ["LAKE_STORE"],) if "LAKE_STORE" in os.environ else ("s3",)


@frozen
class Store:
    """A store with the bucket `lake`, behind a front that injects faults."""

    kind: str
    front: Front
    options: Mapping[str, str] = field(repr=False)

    def location(self, path: str, bucket: str = "lake") -> Location:
        """Return a location in the store."""
        host = f"{bucket}@{AZURE_ACCOUNT}.dfs.core.windows.net" if self.kind == "abfss" else bucket
        return Location.parse(f"{self.kind}://{host}/{path}", self.options)


@contextmanager
def store_of_kind(kind: str, *options: str) -> Iterator[Store]:
    """Run a front, and for s3 moto behind it. The options are those of the front."""
    if kind == "s3":
        with s3_store(conditional=True) as aws, front_of(aws["AWS_ENDPOINT_URL"], *options) as front:
            yield Store(kind, front, {**aws, "AWS_ENDPOINT_URL": front.url})
        return
    words = ["--google", *options] if kind == "gs" else options
    with front_of(RUNNING[kind], *words) as front:
        yield Store(kind, front, options_of(kind, front.url))


def options_of(kind: str, url: str) -> dict[str, str]:
    """Return the options for an emulator of Google's or Azure's store."""
    if kind == "gs":
        return {"GOOGLE_BASE_URL": url, "GOOGLE_SKIP_SIGNATURE": "true"}
    return {"AZURE_STORAGE_ENDPOINT": f"{url}/{AZURE_ACCOUNT}", "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}
