from __future__ import annotations

from pathlib import Path

import pytest

from korvet.lake.errors import InvalidLocation
from korvet.lake.location import Location


@pytest.mark.parametrize(
    "text, url, path",
    [
        ("/var/lake", "file:///var/lake", "/var/lake"),
        ("/var/lake/", "file:///var/lake", "/var/lake"),
        ("file:///var/my%20lake", "file:///var/my%20lake", "/var/my lake"),
        ("s3://bucket/a/b/", "s3://bucket/a/b", "bucket/a/b"),
        ("s3a://bucket", "s3://bucket", "bucket"),
        ("gs://bucket/a/", "gs://bucket/a", "bucket/a"),
        (
            "abfs://box@account.dfs.core.windows.net/a/b/",
            "abfss://box@account.dfs.core.windows.net/a/b",
            "box/a/b",
        ),
        ("abfss://box@account.blob.core.windows.net", "abfss://box@account.blob.core.windows.net", "box"),
    ],
)
def test_location_is_parsed(text: str, url: str, path: str) -> None:
    location = Location.parse(text)

    assert (url, path) == (location.url, location.path)


def test_relative_path_is_resolved_against_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    assert str(tmp_path / "lake") == Location.parse("lake").path


@pytest.mark.parametrize(
    "text",
    [
        *("", "  ", "file://host/path", "ftp://host/path", "s3://", "s3://Not_A/bucket", "gs://"),
        *("abfss://box/path", "abfss://box@account.example.com/path"),
    ],
)
def test_invalid_location_is_refused(text: str) -> None:
    with pytest.raises(InvalidLocation, match="accepted are a path, file:///path, s3://bucket/prefix, gs://"):
        Location.parse(text)


def test_storage_options_use_the_names_of_deltalake() -> None:
    location = Location.parse("s3://bucket/lake", {"endpoint_url": "http://here:1", "AWS_REGION": "eu"})

    assert {
        "AWS_ENDPOINT_URL": "http://here:1",
        "AWS_REGION": "eu",
        "AWS_ALLOW_HTTP": "true",
    } == location.storage_options()


def test_repr_hides_secrets() -> None:
    assert "hush" not in repr(Location.parse("s3://bucket/lake", {"AWS_SECRET_ACCESS_KEY": "hush"}))
