"""Test what S3 alone has: markers of folders, and the messages of its errors. test_stores.py has the contract."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest

from korvet.lake.compacting import Compaction
from korvet.lake.erasing import Erasure, key_set
from korvet.lake.errors import Unreachable
from korvet.lake.listing import archives_in, tables_in
from korvet.lake.location import Location
from korvet.lake.put_if_absent import refuse_unsafe_store
from korvet.lake.retrying import retried
from korvet.lake.table import LakeTable
from korvet.lake.verification import wrongs
from tests.lake.s3 import s3_store
from tests.lake.support import TOPIC, TOPIC_ID, written

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def lake() -> Iterator[Location]:
    with s3_store(conditional=True) as options:
        yield Location.parse("s3://lake/tables", options)


def keys(lake: Location) -> list[str]:
    """Return all keys of the bucket, those of empty objects that stand for folders included."""
    client = boto3.client(
        "s3",
        endpoint_url=lake.options["AWS_ENDPOINT_URL"],
        aws_access_key_id=lake.options["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=lake.options["AWS_SECRET_ACCESS_KEY"],
        region_name=lake.options["AWS_REGION"],
    )
    return [each["Key"] for each in client.list_objects_v2(Bucket="lake").get("Contents", [])]


def test_empty_directory_marker_is_not_listed_as_a_table(lake: Location) -> None:
    refuse_unsafe_store(lake)
    assert [] == keys(lake)
    LakeTable.open_or_create(lake, TOPIC, TOPIC_ID)
    lake.filesystem().create_dir("lake/tables/gone/_delta_log", recursive=True)

    assert "tables/gone/_delta_log/" in keys(lake)
    assert [TOPIC] == tables_in(lake)
    assert [TOPIC] == archives_in(lake)


def test_unreachable_store_is_reported_with_the_cause(lake: Location) -> None:
    nowhere = Location.parse("s3://lake/tables", {**lake.options, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"})

    with pytest.raises(Unreachable) as raised:
        LakeTable.open(nowhere, TOPIC)
    assert (
        "s3://lake/tables/orders: Kernel error -> Generic S3 error: Connection refused (os error 111)."
    ) == str(raised.value)


def test_failed_requests_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.lake.retrying.FIRST_BACKOFF_S", 0.0)
    with s3_store(conditional=True, fails=r"GET .*\.parquet|probe-/_delta_log/0+1.json") as options:
        place = Location.parse("s3://lake/tables", options)
        refuse_unsafe_store(place)
        table = LakeTable.open_or_create(place, TOPIC, TOPIC_ID)
        for start in (0, 10, 20):
            table = table.commit([written(table, start, start + 10, key=b"k")])
        joined = Compaction(table).run()
        assert ([], 3, 1) == (joined.errors, joined.files_before, joined.files_after)
        assert [] == list(wrongs(LakeTable.open(place, TOPIC)))

        erased = Erasure(LakeTable.open(place, TOPIC), key_set([b"k"])).run()
        assert ([], {0: 30}) == (erased.errors, erased.counts())


def test_request_that_always_fails_is_reported_after_some_attempts(
    lake: Location, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("korvet.lake.retrying.FIRST_BACKOFF_S", 0.0)
    nowhere = Location.parse("s3://lake/tables", {**lake.options, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"})

    with pytest.raises(Unreachable, match="Connection refused"):
        retried(lambda: LakeTable.open(nowhere, TOPIC))

    assert 4 == sum("trying again: s3://lake/tables/orders" in each for each in caplog.messages)
