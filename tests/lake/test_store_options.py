from __future__ import annotations

import json
import os

import pytest

from korvet.lake.location import Location

AZURE = "abfss://box@account.dfs.core.windows.net/lake"


def test_google_options_reach_deltalake_and_pyiceberg() -> None:
    location = Location.parse("gs://bucket/lake", {"base_url": "http://here:1", "skip_signature": "true"})

    options = location.storage_options()
    key = json.loads(options.pop("GOOGLE_SERVICE_ACCOUNT_KEY"))
    assert {
        "GOOGLE_BASE_URL": "http://here:1",
        "GOOGLE_SKIP_SIGNATURE": "true",
        "ALLOW_HTTP": "true",
    } == options
    assert key["disable_oauth"]
    properties = location.store.iceberg_properties(location.url)
    assert "http://here:1" == properties["gcs.service.host"]


def test_azure_options_reach_deltalake_and_pyiceberg() -> None:
    location = Location.parse(
        AZURE, {"account_key": "a2V5", "AZURE_STORAGE_ENDPOINT": "http://here:1/account"}
    )

    assert {
        "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
        "AZURE_STORAGE_ENDPOINT": "http://here:1/account",
        "ALLOW_HTTP": "true",
    } == location.storage_options()
    properties = location.store.iceberg_properties(location.url)
    assert ("account", "a2V5", "here:1", "http") == (
        properties["adls.account-name"],
        properties["adls.account-key"],
        properties["adls.blob-storage-authority"],
        properties["adls.blob-storage-scheme"],
    )


@pytest.mark.parametrize("name", ["AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID", "AZURE_STORAGE_AUTHORITY_ID"])
def test_option_is_read_from_the_environment_under_each_of_its_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "tenant")

    assert "tenant" == Location.parse(AZURE).store.option("tenant_id", "authority_id")


def test_given_option_takes_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://elsewhere")

    assert "http://here" == Location.parse("gs://bucket", {"base_url": "http://here"}).store.endpoint


def test_pyarrow_reads_the_credentials_file_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/elsewhere.json")

    Location.parse("gs://bucket", {"GOOGLE_SERVICE_ACCOUNT": "/here.json"}).filesystem()

    assert "/here.json" == os.environ["GOOGLE_APPLICATION_CREDENTIALS"]
