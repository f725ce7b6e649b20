"""Connection security: parse and validate Kafka's settings for TLS and SASL.

Certificate files are read when the settings are parsed. Security holds their contents, so that Spark's workers, which
receive it, do not need the files. No `repr` contains secrets, and error messages name settings, never their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from attrs import field, frozen

from korvet.client.login_module import parse_login_module
from korvet.client.msk_iam import AwsLogin
from korvet.client.tls import VERSIONS, Tls
from korvet.client.token_endpoint import Grant
from korvet.config.tls import TLS12_SUITES, TLS13_SUITES
from korvet.config.tls import versions as enabled_versions
from korvet.pem import CERTIFICATES, PKCS12_FROM_JKS, PRIVATE_KEY, kind_of_keystore

PROTOCOLS = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
#: The mechanisms, and the login module of Java's clients for each.
MECHANISMS = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
    "AWS_MSK_IAM": "IAMLoginModule",
}
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105  the name of a setting
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105  as above
SCOPE = "sasl.oauthbearer.scope"
LOGIN_HANDLER = "sasl.login.callback.handler.class"
#: Java's handlers that read the token where TOKEN_URL names it, which this client does by itself.
LOGIN_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
CLIENT_HANDLER = "sasl.client.callback.handler.class"
#: Amazon's handler for Java's clients, which signs tokens as this client does.
MSK_HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
#: Options of IAMLoginModule without an effect here.
MSK_IGNORED = ("awsDebugCreds", "awsMaxRetries", "awsMaxBackOffTimeMs")
#: The settings that have an effect: names of Kafka's Java clients, then those that only librdkafka has.
SETTINGS = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    TOKEN_URL,
    CLIENT_ID,
    CLIENT_SECRET,
    SCOPE,
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.truststore.type",
    "ssl.truststore.password",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.type",
    "ssl.keystore.password",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    LOGIN_HANDLER,
    CLIENT_HANDLER,
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
)
#: Ignored settings: Java's providers and algorithms, and the renewal of logins, which no supported mechanism has.
IGNORED = (
    "security.providers",
    "ssl.protocol",
    "ssl.provider",
    "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm",
    "ssl.secure.random.implementation",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
)
#: Settings of unsupported mechanisms, and of other ways to get a token.
OF_OTHER_MECHANISMS = ("sasl.kerberos.", "sasl.oauthbearer.")
KEYS = ("ssl.key.location", "ssl.keystore.key")


@frozen
class Sasl:
    """The credentials of a client."""

    mechanism: str
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    #: For OAUTHBEARER, the file with the token, which is read for each authentication.
    token_file: str = ""
    #: For OAUTHBEARER without a file, the server that gives tokens.
    grant: Grant | None = None
    #: For AWS_MSK_IAM, the credentials that sign tokens.
    aws: AwsLogin | None = None

    @property
    def offered_as(self) -> str:
        """The mechanism by its name in the protocol: Amazon's brokers accept its tokens as those of OAUTHBEARER."""
        return "OAUTHBEARER" if self.aws is not None else self.mechanism


@frozen
class Security:
    """The security of a connection: TLS, SASL, both, or none."""

    tls: Tls | None = None
    sasl: Sasl | None = None

    @property
    def protocol(self) -> str:
        """Kafka's name of the security protocol."""
        wanted = (self.tls is not None, self.sasl is not None)
        return next(name for name, has in PROTOCOLS.items() if has == wanted)

    def settings(self) -> dict[str, str]:
        """Return equivalent settings without file names. They contain secrets."""
        settings = {"security.protocol": self.protocol}
        if self.sasl is not None:
            settings["sasl.mechanism"] = self.sasl.mechanism
            if self.sasl.token_file:
                settings[TOKEN_URL] = Path(self.sasl.token_file).as_uri()
            elif self.sasl.grant is not None:
                settings[TOKEN_URL] = self.sasl.grant.url
                settings[CLIENT_ID] = self.sasl.grant.client_id
                settings[CLIENT_SECRET] = self.sasl.grant.client_secret
                settings[SCOPE] = self.sasl.grant.scope
            elif self.sasl.aws is not None:
                settings["sasl.jaas.config"] = _login_module(self.sasl.aws)
                settings[CLIENT_HANDLER] = MSK_HANDLER
            else:
                settings["sasl.username"] = self.sasl.username
                settings["sasl.password"] = self.sasl.password
        if self.tls is not None:
            pem = {
                "ssl.truststore.certificates": self.tls.trusted,
                "ssl.keystore.certificate.chain": self.tls.chain,
                "ssl.keystore.key": self.tls.key,
                "ssl.key.password": self.tls.key_password,
                "ssl.enabled.protocols": ",".join(self.tls.versions),
                "ssl.cipher.suites": ",".join(self.tls.cipher_suites),
            }
            settings |= {name: text for name, text in pem.items() if text}
            settings["ssl.endpoint.identification.algorithm"] = "https" if self.tls.checks_host_name else ""
        return settings


PLAINTEXT = Security()


def is_about_security(name: str) -> bool:
    """Return True if `security_of` accepts or rejects a setting of that name."""
    return name.startswith(("security.", "sasl.", "ssl."))


def is_without_effect(name: str) -> bool:
    """Return True if a security setting is accepted and ignored."""
    return name in IGNORED or (name.startswith(OF_OTHER_MECHANISMS) and name not in SETTINGS)


def security_of(settings: Mapping[str, str], *, prefix: str = "") -> Security:
    """Return the Security of settings with Kafka's names, ignoring settings that are not about security.

    Raises ValueError with the name of the wrong setting, preceded by `prefix`, and the accepted values.
    """
    given = _Settings(settings, prefix)
    given.refuse_unknown()
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        given.fail("security.protocol", f"is {protocol!r}; accepted are {', '.join(PROTOCOLS)}")
    handler = given.get(CLIENT_HANDLER)
    if handler and (handler != MSK_HANDLER or given.get("sasl.mechanism").upper() != "AWS_MSK_IAM"):
        given.fail(
            CLIENT_HANDLER,
            f"names {handler}, which only Java runs; accepted is {MSK_HANDLER} with "
            f"{prefix}sasl.mechanism=AWS_MSK_IAM",
        )
    has_tls, has_sasl = PROTOCOLS[protocol]
    tls = _tls(given) if has_tls else None
    return Security(tls, _sasl(given, "" if tls is None else tls.trusted) if has_sasl else None)


@frozen
class _Settings:
    """The settings while they are parsed."""

    values: Mapping[str, str] = field(repr=False)
    prefix: str

    def get(self, name: str, default: str = "") -> str:
        """Return the value of a setting. As in Kafka, surrounding spaces are removed, except from passwords."""
        text = self.values.get(name, default)
        return text if name.endswith(".password") else text.strip()

    def fail(self, name: str, what: str) -> NoReturn:
        raise ValueError(f"{self.prefix}{name} {what}.")

    def refuse_unknown(self) -> None:
        for name in self.values:
            if is_about_security(name) and name not in SETTINGS and not is_without_effect(name):
                accepted = ", ".join(f"{self.prefix}{each}" for each in SETTINGS)
                self.fail(name, f"is not supported; accepted are {accepted}")

    def one_of(self, *names: str) -> str:
        """Return the one of the names that is set, or the first if none is. Raises ValueError if several are."""
        chosen = [name for name in names if self.get(name)]
        if len(chosen) > 1:
            self.fail(chosen[0], f"is given, and {self.prefix}{chosen[1]} as well; accepted is one of them")
        return chosen[0] if chosen else names[0]

    def pem(self, *names: str, blocks: re.Pattern[str], what: str) -> str:
        """Return the PEM blocks in the setting that is set, or in the file that it names; "" if none is set."""
        name = self.one_of(*names)
        text = self.get(name)
        if not text:
            return ""
        found = blocks.findall(self._read(name, text) if name.endswith(".location") else text)
        if not found:
            self.fail(name, f"holds no {what} as PEM (-----BEGIN …)")
        return "\n".join([*found, ""])

    def _read(self, name: str, path: str) -> str:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            self.fail(name, f"cannot be read: {path}: {error.strerror}")
        if kind := kind_of_keystore(data):
            self.fail(name, f"is a {kind} file, which only Java reads; accepted is PEM: {CONVERSIONS[kind]}")
        return data.decode("utf-8", "replace")


CONVERSIONS = {
    "JKS": f"{PKCS12_FROM_JKS}, then openssl pkcs12 -in FILE.p12 -nodes -out FILE.pem",
    "PKCS12": "openssl pkcs12 -in FILE -nodes -out FILE.pem",
}


def _tls(given: _Settings) -> Tls:
    trusted = given.pem(
        *("ssl.truststore.location", "ssl.ca.location", "ssl.truststore.certificates"),
        blocks=CERTIFICATES,
        what="certificates",
    )
    chain = given.pem(
        *("ssl.keystore.location", "ssl.certificate.location", "ssl.keystore.certificate.chain"),
        blocks=CERTIFICATES,
        what="certificate",
    )
    keys = ("ssl.keystore.location",) if given.get("ssl.keystore.location") else KEYS
    key = given.pem(*keys, blocks=PRIVATE_KEY, what="private key")
    if chain and not key:
        given.fail("ssl.key.location", "is missing; a certificate of the client's needs its private key")
    if key and not chain:
        given.fail("ssl.certificate.location", "is missing; a private key needs the certificate it is for")
    for store in ("truststore", "keystore"):
        _check_store(given, store)
    versions, suites = _versions(given), _suites(given)
    if not (versions := tuple(enabled_versions(versions, suites))):
        given.fail("ssl.cipher.suites", "belong to no version of ssl.enabled.protocols")
    tls = Tls(
        trusted,
        chain,
        key,
        given.get("ssl.key.password"),
        checks_host_name=_checks_host_name(given),
        versions=versions,
        cipher_suites=suites,
    )
    try:
        tls.context()
    except ValueError as error:
        raise ValueError(f"{given.prefix}{error}") from None
    return tls


def _check_store(given: _Settings, store: str) -> None:
    """Raise ValueError for settings of a store that PEM does not support: other types, and a store password."""
    kind = given.get(f"ssl.{store}.type", "PEM").upper()
    if kind != "PEM":
        what = CONVERSIONS.get(kind, "certificates and keys as text")
        given.fail(f"ssl.{store}.type", f"is {kind!r}; accepted is PEM: {what}")
    if given.get(f"ssl.{store}.password"):
        given.fail(f"ssl.{store}.password", "is for JKS and PKCS12; a key in PEM has ssl.key.password")


def _checks_host_name(given: _Settings) -> bool:
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "", "none"):
        given.fail(
            "ssl.endpoint.identification.algorithm", f"is {algorithm!r}; accepted are https, or nothing"
        )
    return algorithm == "https"


def _versions(given: _Settings) -> tuple[str, ...]:
    text = given.get("ssl.enabled.protocols")
    wanted = {word.strip() for word in text.split(",")} if text else set(VERSIONS)
    chosen = tuple(version for version in VERSIONS if version in wanted)
    if not chosen:
        given.fail("ssl.enabled.protocols", f"names none of {' and '.join(VERSIONS)}, which are accepted")
    return chosen


def _suites(given: _Settings) -> tuple[str, ...]:
    """Return the cipher suites by Java's names, none for all."""
    suites = tuple(filter(None, map(str.strip, given.get("ssl.cipher.suites").split(","))))
    for suite in suites:
        if suite not in TLS13_SUITES and suite not in TLS12_SUITES:
            accepted = ", ".join([*TLS13_SUITES, *TLS12_SUITES])
            given.fail("ssl.cipher.suites", f"names {suite!r}; accepted are {accepted}")
    if 0 < len(set(TLS13_SUITES) & set(suites)) < len(TLS13_SUITES):
        given.fail("ssl.cipher.suites", f"must name all of {', '.join(TLS13_SUITES)}, or none of them")
    return suites


def _sasl(given: _Settings, trusted: str) -> Sasl:
    mechanism = given.get("sasl.mechanism").upper()
    handler = given.get(LOGIN_HANDLER)
    if handler and handler not in LOGIN_HANDLERS:
        given.fail(
            LOGIN_HANDLER, f"names {handler}, which only Java runs; accepted are {', '.join(LOGIN_HANDLERS)}"
        )
    if mechanism not in MECHANISMS:
        fault = f"is {mechanism!r}" if mechanism else "is missing"
        given.fail("sasl.mechanism", f"{fault}; accepted are {', '.join(MECHANISMS)}")
    if mechanism == "OAUTHBEARER":
        return _bearer(given, trusted)
    if mechanism == "AWS_MSK_IAM":
        return _msk_iam(given)
    if given.one_of("sasl.jaas.config", "sasl.username") == "sasl.username":
        username, password = given.get("sasl.username"), given.get("sasl.password")
    else:
        username, password = _login(given, mechanism)
    if not username or not password:
        given.fail(
            "sasl.jaas.config",
            f"gives no {'password' if username else 'username'}; accepted is a login module with both, "
            f"or {given.prefix}sasl.username and {given.prefix}sasl.password",
        )
    return Sasl(mechanism, username, password)


def _bearer(given: _Settings, trusted: str) -> Sasl:
    """Return the way to a token. As in Kafka's clients, a file: URL names it instead of a token endpoint."""
    options = _login_options(given, "OAUTHBEARER")
    text = given.get(TOKEN_URL)
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError as error:
        given.fail(TOKEN_URL, f"is not a URL: {error}")
    if url.scheme == "file" and url.path.startswith("/"):
        return Sasl("OAUTHBEARER", token_file=unquote(url.path))
    if url.scheme not in ("http", "https") or not url.hostname or url.username is not None:
        given.fail(
            TOKEN_URL,
            "names no file and no server; accepted are file:///PATH of a file with a token, and "
            "https://HOST/PATH of a server that gives tokens",
        )
    client_id = given.get(CLIENT_ID) or options.get("clientId", "")
    secret = given.get(CLIENT_SECRET) or options.get("clientSecret", "")
    if not client_id or not secret:
        name = CLIENT_SECRET if client_id else CLIENT_ID
        given.fail(name, "is missing, which the server of sasl.oauthbearer.token.endpoint.url requires")
    scope = given.get(SCOPE) or options.get("scope", "")
    return Sasl("OAUTHBEARER", grant=Grant(text, client_id, secret, scope, trusted))


def _msk_iam(given: _Settings) -> Sasl:
    """Return the login with AWS's credentials. Their profile is the only option."""
    options = dict(_login_options(given, "AWS_MSK_IAM"))
    profile = options.pop("awsProfileName", "")
    for name in options:
        if name not in MSK_IGNORED:
            given.fail(
                "sasl.jaas.config", f"has {name}; accepted is awsProfileName, of a profile with role_arn"
            )
    if find_spec("botocore") is None:
        given.fail("sasl.mechanism", "is 'AWS_MSK_IAM', which requires: pip install 'korvet[msk]'")
    return Sasl("AWS_MSK_IAM", aws=AwsLogin(profile))


def _login_module(aws: AwsLogin) -> str:
    profile = re.sub(r'(["\\])', r"\\\1", aws.profile)
    option = f' awsProfileName="{profile}"' if profile else ""
    return f"software.amazon.msk.auth.iam.IAMLoginModule required{option};"


def _login(given: _Settings, mechanism: str) -> tuple[str, str]:
    options = _login_options(given, mechanism)
    return options.get("username", ""), options.get("password", "")


def _login_options(given: _Settings, mechanism: str) -> Mapping[str, str]:
    text = given.get("sasl.jaas.config")
    if not text:
        return {}
    try:
        module = parse_login_module(text)
    except ValueError as error:
        given.fail("sasl.jaas.config", str(error))
    if module.name != MECHANISMS[mechanism]:
        given.fail("sasl.jaas.config", f"names {module.name}; {mechanism} takes {MECHANISMS[mechanism]}")
    return module.options
