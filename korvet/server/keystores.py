"""The certificates of listeners with TLS: read their settings and files, and read the files again when they change."""

from __future__ import annotations

import importlib.util
import logging
import re
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, field, frozen

from korvet.config import Config, ConfigError, Listener
from korvet.config.tls import TLS12_SUITES, versions
from korvet.pem import CERTIFICATES, PKCS12_FROM_JKS, PRIVATE_KEY, kind_of_keystore, load_key, words
from korvet.security.certificates import PrincipalRule, parse_rules, principal_name

logger = logging.getLogger(__name__)

REFRESH_INTERVAL_S: Final = 5.0
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
#: PEM may be in one line, as Kafka accepts it. OpenSSL requires lines.
END: Final = "-----END CERTIFICATE-----\n"
ONE_LINE: Final = re.compile(r"(-----BEGIN [A-Z ]+-----)\s*([A-Za-z0-9+/=\s]+?)\s*(-----END [A-Z ]+-----)")


class KeystoreError(Exception):
    """A setting's value or file cannot be used."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(f"$.{setting}: {reason}")


@frozen
class ListenerSettings:
    """The TLS settings of a listener."""

    config: Config
    listener: Listener

    def __getitem__(self, attribute: str) -> Any:
        return self.config.of_listener(self.listener, f"ssl_{attribute}")

    def error(self, attribute: str, reason: str) -> KeystoreError:
        return KeystoreError(self.config.name_on_listener(self.listener, f"ssl_{attribute}"), reason)


@frozen
class Contents:
    """The contents of a listener's files, empty if it has none."""

    keystore: bytes = field(repr=False)
    truststore: bytes = field(repr=False)


@define(eq=False)
class ListenerTls:
    """TLS of one listener. New connections use `context`, which `refresh` replaces."""

    settings: ListenerSettings
    rules: tuple[PrincipalRule, ...]
    context: ssl.SSLContext
    _contents: Contents
    _fault: str = ""  # the last one that was logged

    @classmethod
    def of(cls, settings: ListenerSettings) -> ListenerTls:
        """Return the TLS of a listener. Raises KeystoreError."""
        try:
            rules = parse_rules(settings["principal_mapping_rules"])
        except ValueError as error:
            raise settings.error("principal_mapping_rules", str(error)) from None
        contents = read_files(settings)
        return cls(settings, rules, context_of(settings, contents), contents)

    def principal_name(self, certificate: bytes) -> str | None:
        """Return the name of the principal of a client's certificate, or None if no rule applies to it."""
        return principal_name(certificate, self.rules)

    async def refresh(self) -> None:
        """Use the certificates of files that have changed. If they are not usable, log it once and keep the others."""
        try:
            await trio.to_thread.run_sync(self._refresh)
        except KeystoreError as error:
            if str(error) != self._fault:
                logger.error(  # noqa: TRY400  the operator needs no traceback
                    "%(error)s; new connections to %(listener)s use the previous certificates",
                    {"error": error, "listener": self.settings.listener},
                )
            self._fault = str(error)
        else:
            self._fault = ""

    def _refresh(self) -> None:
        contents = read_files(self.settings)
        if contents != self._contents:
            self.context, self._contents = context_of(self.settings, contents), contents
            fields = {"listener": self.settings.listener}
            logger.info("new connections to %(listener)s use new certificates", fields)


def listeners_tls(config: Config) -> Mapping[str, ListenerTls]:
    """Return the TLS of each listener that has it, by name. Raises ConfigError with all faults."""
    found: dict[str, ListenerTls] = {}
    faults: dict[str, None] = {}
    for listener in filter(config.has_tls, config.listeners):
        try:
            found[listener.name] = ListenerTls.of(ListenerSettings(config, listener))
        except KeystoreError as error:
            faults[str(error)] = None
    if faults:
        raise ConfigError(faults)
    return found


async def refresh(listeners: Iterable[ListenerTls]) -> None:
    """Refresh the certificates of the listeners at intervals. Never returns."""
    while True:
        await trio.sleep(REFRESH_INTERVAL_S)
        for tls in listeners:
            await tls.refresh()


# --- Files ---------------------------------------------------------------------------------------------------


def read_files(settings: ListenerSettings) -> Contents:
    """Return the contents of the listener's files. Raises KeystoreError."""
    return Contents(_read(settings, "keystore_location"), _read(settings, "truststore_location"))


def _read(settings: ListenerSettings, attribute: str) -> bytes:
    path = settings[attribute]
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise settings.error(attribute, f"{path}: {error.strerror}") from None


def context_of(settings: ListenerSettings, contents: Contents) -> ssl.SSLContext:
    """Return the context of new connections. Raises KeystoreError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _choose_algorithms(context, settings)
    _load_key(context, settings, contents.keystore)
    context.verify_mode = CLIENT_AUTH[settings.config.client_auth(settings.listener)]
    # As in Java, any certificate in the file is trusted, not only those of root authorities.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if context.verify_mode != ssl.CERT_NONE:
        _load_authorities(context, settings, contents.truststore)
    return context


def _choose_algorithms(context: ssl.SSLContext, settings: ListenerSettings) -> None:
    suites = settings["cipher_suites"]
    enabled = versions(settings["enabled_protocols"], suites)
    context.minimum_version, context.maximum_version = VERSIONS[enabled[0]], VERSIONS[enabled[-1]]
    # A client could make the broker compute another handshake at any time.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # clients keep their connections, and a resumed session is not verified again
    # OpenSSL's own choice has suites with CBC as well.
    names = [name for suite, name in TLS12_SUITES.items() if not suites or suite in suites]
    if names:
        context.set_ciphers(":".join(names))


@frozen
class KeyPair:
    """The text of a listener's certificates and key, and the settings that it is from."""

    chain: str
    key: str = field(repr=False)
    chain_setting: str = "keystore_location"
    key_setting: str = "keystore_location"


def _key_pair(settings: ListenerSettings, content: bytes) -> KeyPair:
    if not settings["keystore_location"]:
        names = "keystore_certificate_chain", "keystore_key"
        return KeyPair(settings[names[0]], settings[names[1]], *names)
    if settings["keystore_type"] == "PKCS12":
        return KeyPair(*_pkcs12(settings, "keystore", content))
    text = _pem_file(settings, "keystore_location", content)
    return KeyPair(text, text)


def certificate_of(settings: ListenerSettings) -> bytes:
    """Return the listener's certificate in DER, without those of its authorities. Raises KeystoreError."""
    pair = _key_pair(settings, _read(settings, "keystore_location"))
    chain = _blocks(settings, pair.chain_setting, CERTIFICATES, "certificate", pair.chain)
    return ssl.PEM_cert_to_DER_cert(chain[: chain.index(END) + len(END)])


def _load_key(context: ssl.SSLContext, settings: ListenerSettings, content: bytes) -> None:
    pair = _key_pair(settings, content)
    chain = _blocks(settings, pair.chain_setting, CERTIFICATES, "certificate", pair.chain)
    key = _blocks(settings, pair.key_setting, PRIVATE_KEY, "private key", pair.key)
    password = "" if settings["keystore_type"] == "PKCS12" else settings["key_password"] or ""
    try:
        load_key(context, chain, key, password)
    except ValueError as error:
        raise settings.error(
            pair.key_setting, f"{error}{_of_chain(pair.chain_setting, pair.key_setting)}"
        ) from None


def _of_chain(chain_name: str, key_name: str) -> str:
    return "" if chain_name == key_name else " (ssl.keystore.certificate.chain)"


def _load_authorities(context: ssl.SSLContext, settings: ListenerSettings, content: bytes) -> None:
    name = "truststore_location"
    if not settings[name]:
        name = "truststore_certificates"
        text = settings[name]
    elif settings["truststore_type"] == "PKCS12":
        text, _ = _pkcs12(settings, "truststore", content)
    else:
        text = _pem_file(settings, name, content)
    try:
        context.load_verify_locations(cadata=_blocks(settings, name, CERTIFICATES, "certificates", text))
    except ssl.SSLError as error:
        raise settings.error(name, f"it has no usable certificates: {words(error)}") from None


def _blocks(
    settings: ListenerSettings, attribute: str, pattern: re.Pattern[str], what: str, text: str
) -> str:
    found = pattern.findall(text)
    if not found:
        raise settings.error(attribute, f"it has no {what} as PEM (-----BEGIN …)")
    return "\n".join([*(ONE_LINE.sub(r"\1\n\2\n\3", block) for block in found), ""])


def _pem_file(settings: ListenerSettings, attribute: str, content: bytes) -> str:
    kind = kind_of_keystore(content)
    if kind:
        store = attribute.partition("_")[0]
        how = f"convert it with {PKCS12_FROM_JKS}, and set" if kind == "JKS" else "set"
        raise settings.error(attribute, f"it is a {kind} file; {how} ssl.{store}.type=PKCS12")
    return content.decode("utf-8", "replace")


def _pkcs12(settings: ListenerSettings, store: str, content: bytes) -> tuple[str, str]:
    """Return the certificates and the key of a PKCS12 file as PEM. Raises KeystoreError."""
    if importlib.util.find_spec("cryptography") is None:
        raise settings.error(f"{store}_type", "PKCS12 requires: pip install 'korvet[pkcs12]'")
    # Imported here, because few brokers need it.
    from korvet.server.pkcs12 import certificates_and_key  # noqa: PLC0415

    if kind_of_keystore(content) == "JKS":
        raise settings.error(f"{store}_location", f"it is a JKS file; convert it with {PKCS12_FROM_JKS}")
    try:
        return certificates_and_key(content, settings[f"{store}_password"])
    except ValueError:
        raise settings.error(
            f"{store}_location", f"it is not a PKCS12 file that ssl.{store}.password opens"
        ) from None
