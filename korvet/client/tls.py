"""TLS between a client and a broker, and explanations of TLS errors."""

from __future__ import annotations

import ssl

import trio
from attrs import field, frozen

from korvet.config.tls import TLS12_SUITES
from korvet.pem import load_key, words
from korvet.protocol.errors import ErrorCode, KafkaError

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
#: X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL.
NAME_MISMATCHES = {62, 64}
#: The other side closed the connection during the handshake. Which of them is raised depends on OpenSSL's version.
CLOSED_EARLY = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
#: OpenSSL's reasons for responses that are not TLS, and for alerts about the client's certificate.
NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}
WITHOUT_CERTIFICATE = {"TLSV13_ALERT_CERTIFICATE_REQUIRED"}
ABOUT_CERTIFICATE = {
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
    "TLSV1_ALERT_UNKNOWN_CA",
    "TLSV1_ALERT_ACCESS_DENIED",
}


class TlsRefused(KafkaError):  # noqa: N818  names the event
    """The client or the broker rejected the other's TLS. A retry does not help."""

    error_code = ErrorCode.NETWORK_EXCEPTION
    retriable = False


@frozen
class Tls:
    """The certificates that a client trusts (default: the system's), and its own (default: none), as PEM."""

    trusted: str = field(default="", repr=False)
    chain: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    checks_host_name: bool = True
    versions: tuple[str, ...] = tuple(VERSIONS)
    cipher_suites: tuple[str, ...] = ()  # accepted suites; all if empty

    def context(self) -> ssl.SSLContext:
        """Return an SSLContext. Raises ValueError whose message begins with the name of the wrong setting."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.checks_host_name
        context.minimum_version = VERSIONS[self.versions[0]]
        context.maximum_version = VERSIONS[self.versions[-1]]
        names = [TLS12_SUITES[suite] for suite in self.cipher_suites if suite in TLS12_SUITES]
        if names:
            context.set_ciphers(":".join(names))
        if self.trusted:
            try:
                context.load_verify_locations(cadata=self.trusted)
            except ssl.SSLError as error:
                raise ValueError(f"ssl.truststore.location holds no certificates: {words(error)}.") from None
        else:
            context.load_default_certs()
        if self.chain:
            try:
                load_key(context, self.chain, self.key, self.key_password)
            except ValueError as error:
                raise ValueError(
                    f"ssl.keystore.location (or what stands for it) gives no usable certificate and key: {error}."
                ) from None
        return context


async def secured(stream: trio.abc.Stream, context: ssl.SSLContext, host: str) -> trio.abc.Stream:
    """Do the TLS handshake over a stream and return the encrypted stream. Closing it closes the other.

    Raises Trio's stream errors, which `explain` can describe.
    """
    encrypted = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    await encrypted.do_handshake()
    return encrypted


def explain(error: BaseException) -> str:
    """Return the reason why TLS failed, or "" if the error is not about TLS or a retry may help."""
    found = _ssl_error(error)
    if found is None or isinstance(found, CLOSED_EARLY):
        return ""
    if isinstance(found, ssl.SSLCertVerificationError):
        if found.verify_code in NAME_MISMATCHES:
            return (
                f"its certificate is for other hosts: {found.verify_message} "
                "(an empty ssl.endpoint.identification.algorithm disables this check)"
            )
        return (
            f"its certificate is not trusted: {found.verify_message} "
            "(ssl.truststore.location or ssl.ca.location names a PEM file with those that are)"
        )
    reason = found.reason or ""
    if reason in NO_TLS:
        return "the listener does not use TLS (security.protocol=PLAINTEXT and SASL_PLAINTEXT connect without TLS)"
    if reason in WITHOUT_CERTIFICATE:
        return (
            "it requires a client certificate (ssl.keystore.location names a PEM file with one, and its key)"
        )
    if reason in ABOUT_CERTIFICATE:
        return (
            f"it does not accept the client's certificate, or requires one: {words(found)} "
            "(ssl.keystore.location names a PEM file with one, and its key)"
        )
    return f"no TLS: {words(found)}"


def _ssl_error(error: BaseException) -> ssl.SSLError | None:
    """Return the SSLError among an error and its causes, or None."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__
    return found
