"""Object stores, by the scheme of a location: their options, and what deltalake, pyarrow and PyIceberg take of them.

Options have the names that deltalake accepts, in any case, with or without the prefix of the store's SDK. pyarrow and
PyIceberg are configured from the same options. Missing ones are read from the environment.

    s3://bucket/prefix                                   AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …
    gs://bucket/prefix                                   GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_BASE_URL, …
    abfss://container@account.dfs.core.windows.net/path  AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, …
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pyarrow.fs as pafs
from attrs import field, frozen

from korvet.lake.azure import AzureFiles

#: Prefix of deltalake's options in PyIceberg's properties.
AZURE_OPTION = "korvet.azure."
# pyarrow's client of Google's store repeats failed requests for 15 minutes by default.
GCS_RETRIES = timedelta(seconds=30)


@frozen
class ObjectStore(ABC):
    """One bucket or container with options. A subclass for each kind of store names what is different."""

    options: Mapping[str, str] = field(factory=dict, repr=False)  # they may include secrets

    #: Schemes of URLs; the first one is used in messages and metadata.
    schemes: ClassVar[Sequence[str]]
    #: Pattern of the part of a URL behind its scheme and "://".
    form: ClassVar[str]
    #: Prefixes of the options' names, which may be left out.
    prefixes: ClassVar[Sequence[str]]
    #: Environment variables for Spark's workers on other machines.
    variables: ClassVar[Sequence[str]]
    #: The condition of a request that must not replace an object.
    condition: ClassVar[str]
    #: Spellings of the option for the store's address, without a prefix.
    endpoints: ClassVar[Sequence[str]]

    @abstractmethod
    def storage_options(self) -> dict[str, str]:
        """Return the options for deltalake, which reads the environment itself."""

    @abstractmethod
    def filesystem(self, url: str) -> pafs.FileSystem:
        """Return a new pyarrow filesystem. Raises ValueError, OSError."""

    @abstractmethod
    def iceberg_properties(self, url: str) -> dict[str, Any]:
        """Return the properties of PyIceberg's catalogues for the store."""

    def path(self, url: str) -> str:
        """Return the path of a URL for the filesystem: bucket/prefix."""
        return url.partition("://")[2]

    def option(self, *spellings: str) -> str | None:
        """Return the first option with a value, by its names in lower case without prefix, else the environment's."""
        given = {self._plain(name): value for name, value in self.options.items()}
        found = [
            *map(given.get, spellings),
            *(
                os.environ.get(f"{prefix}{spelling}".upper())
                for spelling in spellings
                for prefix in self.prefixes
            ),
        ]
        return next(filter(None, found), None)

    def _plain(self, name: str) -> str:
        plain = name.lower()
        for prefix in self.prefixes:
            if plain.startswith(prefix):
                return plain.removeprefix(prefix)
        return plain

    @property
    def endpoint(self) -> str:
        """The store's address, empty for the default one."""
        return self.option(*self.endpoints) or ""


class S3(ObjectStore):
    """Amazon S3, or a store with its API."""

    schemes = ("s3", "s3a")
    form = r"[a-z0-9][a-z0-9._-]+(/|$)"
    prefixes = ("aws_",)
    variables = (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ALLOW_HTTP",
    )
    condition = "If-None-Match"
    endpoints = ("endpoint_url", "endpoint")

    def storage_options(self) -> dict[str, str]:
        options = {
            name.upper() if name.upper().startswith("AWS_") else f"AWS_{name.upper()}": value
            for name, value in self.options.items()
        }
        if self.endpoint.startswith("http://"):
            options.setdefault("AWS_ALLOW_HTTP", "true")
        return options

    def filesystem(self, url: str) -> pafs.FileSystem:  # noqa: ARG002  the bucket is in the paths
        scheme = {"scheme": "http"} if self.endpoint.startswith("http://") else {}
        return pafs.S3FileSystem(
            **_given(
                access_key=self.option("access_key_id"),
                secret_key=self.option("secret_access_key"),
                session_token=self.option("session_token", "token"),
                region=self.option("region", "default_region"),
                endpoint_override=self.endpoint,
            ),
            **scheme,
        )

    def iceberg_properties(self, url: str) -> dict[str, Any]:  # noqa: ARG002
        names = {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.option("access_key_id"),
            "s3.secret-access-key": self.option("secret_access_key"),
            "s3.session-token": self.option("session_token", "token"),
            "s3.region": self.option("region", "default_region"),
        }
        return _given(**names)


class GoogleStore(ObjectStore):
    """Google Cloud Storage."""

    schemes = ("gs", "gcs")
    form = r"[a-z0-9][a-z0-9._-]+(/|$)"
    prefixes = ("google_",)
    variables = (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_BASE_URL",
        "GOOGLE_SKIP_SIGNATURE",
    )
    condition = "ifGenerationMatch"
    endpoints = ("base_url",)

    def storage_options(self) -> dict[str, str]:
        options = {f"GOOGLE_{self._plain(name).upper()}": value for name, value in self.options.items()}
        if self._is_anonymous:
            # deltalake requests a token in spite of GOOGLE_SKIP_SIGNATURE, but not with a key that needs none.
            nothing = {"client_email": "", "private_key": "", "private_key_id": ""}
            options["GOOGLE_SERVICE_ACCOUNT_KEY"] = json.dumps({"disable_oauth": True, **nothing})
        if self.endpoint:
            options["GOOGLE_BASE_URL"] = self.endpoint
        if self.endpoint.startswith("http://"):
            options.setdefault("ALLOW_HTTP", "true")
        return options

    def filesystem(self, url: str) -> pafs.FileSystem:  # noqa: ARG002  the bucket is in the paths
        credentials = self.option("application_credentials", "service_account", "service_account_path")
        if credentials and not self._is_anonymous:
            # pyarrow has no argument for it: its client reads this variable alone.
            os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = credentials
        address = urlsplit(self.endpoint)
        return pafs.GcsFileSystem(
            anonymous=self._is_anonymous,
            retry_time_limit=GCS_RETRIES,
            **_given(scheme=address.scheme, endpoint_override=address.netloc),
        )

    def iceberg_properties(self, url: str) -> dict[str, Any]:  # noqa: ARG002
        found = _given(**{"gcs.service.host": self.endpoint})
        if self._is_anonymous:
            # PyIceberg's filesystem has no property for anonymous access, but a store for all ignores the token.
            forever = datetime(2100, 1, 1, tzinfo=UTC)
            found |= {
                "gcs.oauth2.token": "anonymous",
                "gcs.oauth2.token-expires-at": str(round(forever.timestamp() * 1000)),
            }
        return found

    @property
    def _is_anonymous(self) -> bool:
        return (self.option("skip_signature") or "").lower() in {"1", "true", "yes", "on"}


class AzureStore(ObjectStore):
    """Azure Blob Storage and Data Lake Storage. The URL names the container and the account."""

    schemes = ("abfss", "abfs")
    form = r"[a-z0-9][a-z0-9-]+@[a-z0-9]+\.(dfs|blob)\.core\.windows\.net(/|$)"
    prefixes = ("azure_storage_", "azure_")
    variables = (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
    )
    condition = "If-None-Match"
    endpoints = ("endpoint",)

    def path(self, url: str) -> str:
        whole = urlsplit(url)
        return f"{whole.username}{whole.path}"

    def storage_options(self) -> dict[str, str]:
        options = {
            f"AZURE_STORAGE_{self._plain(name).upper()}": value for name, value in self.options.items()
        }
        if self.endpoint.startswith("http://"):
            options.setdefault("ALLOW_HTTP", "true")
        return options

    def filesystem(self, url: str) -> pafs.FileSystem:
        return azure_files(self._arguments(url), self.storage_options())

    def iceberg_properties(self, url: str) -> dict[str, Any]:
        properties = {f"adls.{name.replace('_', '-')}": value for name, value in self._arguments(url).items()}
        options = {f"{AZURE_OPTION}{name}": value for name, value in self.storage_options().items()}
        return {"py-io-impl": "korvet.lake.iceberg.azure_files.AzureIO", **properties, **options}

    def _arguments(self, url: str) -> dict[str, str]:
        """Return the arguments of pyarrow's filesystem."""
        address = urlsplit(self.endpoint)
        return {
            "account_name": str(urlsplit(url).hostname).partition(".")[0],
            **_given(
                account_key=self.option("account_key", "access_key", "master_key"),
                sas_token=self.option("sas_token", "sas_key"),
                client_id=self.option("client_id"),
                client_secret=self.option("client_secret"),
                tenant_id=self.option("tenant_id", "authority_id"),
                blob_storage_authority=address.netloc,
                dfs_storage_authority=address.netloc,
                blob_storage_scheme=address.scheme,
                dfs_storage_scheme=address.scheme,
            ),
        }


def azure_files(arguments: Mapping[str, str], options: Mapping[str, str]) -> pafs.FileSystem:
    """Return a filesystem for Azure, from pyarrow's arguments and deltalake's options."""
    files = pafs.AzureFileSystem(**arguments)
    return pafs.PyFileSystem(AzureFiles(files, arguments["account_name"], options))


def _given(**arguments: str | None) -> dict[str, Any]:
    """Return the arguments that have a value."""
    return {name: value for name, value in arguments.items() if value}


STORES: Mapping[str, type[ObjectStore]] = {
    scheme: store for store in (S3, GoogleStore, AzureStore) for scheme in store.schemes
}


def store_of(url: str, options: Mapping[str, str]) -> ObjectStore:
    """Return the store of a URL with one of the schemes of STORES."""
    return STORES[url.partition("://")[0]](options)


def normalized(scheme: str, rest: str) -> str | None:
    """Return a URL with the first scheme of its store and without a slash at its end; None if it has no bucket."""
    store = STORES[scheme]
    if not re.match(store.form, rest):
        return None
    return f"{store.schemes[0]}://{rest.rstrip('/')}"
