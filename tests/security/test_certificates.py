"""The expected names are those of java.security.cert.X509Certificate.getSubjectX500Principal().getName() of JDK 17."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from korvet.security.certificates import parse_rules, principal_name, subject_name, valid_until

KEY = ec.generate_private_key(ec.SECP256R1())
Attribute = x509.NameAttribute


NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def certificate(*names: list[Attribute[str]], end: dt.datetime = NOW) -> bytes:
    """Return a certificate in DER whose subject has these relative distinguished names."""
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([Attribute(NameOID.COMMON_NAME, "authority")]),
        subject_name=x509.Name([x509.RelativeDistinguishedName(attributes) for attributes in names]),
        public_key=KEY.public_key(),
        serial_number=2**130,
        not_valid_before=NOW,
        not_valid_after=end,
    )
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


def common_name(text: str, kind: _ASN1Type = _ASN1Type.UTF8String) -> list[Attribute[str]]:
    return [Attribute(NameOID.COMMON_NAME, text, kind)]


@pytest.mark.parametrize(
    "names, expected",
    [
        ([], ""),
        (
            [
                [Attribute(NameOID.COUNTRY_NAME, "DE")],
                [Attribute(NameOID.ORGANIZATION_NAME, "Acme")],
                [Attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "Team")],
                common_name("alice"),
            ],
            "CN=alice,OU=Team,O=Acme,C=DE",
        ),
        (
            [
                [Attribute(NameOID.ORGANIZATION_NAME, ' lead, "quoted" + <a>; b=c #x\\y ')],
                common_name("#a"),
            ],
            r"CN=\#a,O=\ lead\, \"quoted\" \+ \<a\>\; b\=c \#x\\y\ ",
        ),
        (
            [
                [Attribute(NameOID.EMAIL_ADDRESS, "a@b.c", _ASN1Type.IA5String)],
                [Attribute(NameOID.SERIAL_NUMBER, "17")],
                common_name("x"),
            ],
            "CN=x,2.5.4.5=#13023137,1.2.840.113549.1.9.1=#16056140622e63",
        ),
        (
            [
                [*common_name("x"), Attribute(NameOID.USER_ID, "u1")],
                [Attribute(NameOID.DOMAIN_COMPONENT, "example")],
                [Attribute(NameOID.STREET_ADDRESS, "1 Road")],
                [Attribute(NameOID.STATE_OR_PROVINCE_NAME, "S")],
                [Attribute(NameOID.LOCALITY_NAME, "L")],
            ],
            "L=L,ST=S,STREET=1 Road,DC=example,CN=x+UID=u1",
        ),
        ([common_name("Jörg 東\0z")], "CN=Jörg 東\\00z"),
        ([common_name("Jörg", _ASN1Type.BMPString)], "CN=\\00J\\00\ufffd\\00r\\00g"),
        ([common_name("  a  b  ")], r"CN=\ \ a  b\ \ "),
        ([[Attribute(NameOID.STREET_ADDRESS, "x" * 128)]] * 3, ",".join(["STREET=" + "x" * 128] * 3)),
    ],
)
def test_subject_is_named_as_java_names_it(names: list[list[Attribute[str]]], expected: str) -> None:
    assert expected == subject_name(certificate(*names))


@pytest.mark.parametrize(
    "rules, expected",
    [
        ("DEFAULT", "CN=Duke,OU=ServiceUsers,O=Org,C=US"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/U", "DUKE@SERVICEUSERS"),
        ("RULE:^CN=(.*?),OU=Admin.*$/$1/L, RULE:^.*[Cc]=([a-zA-Z]*).*$/$1/", "US"),
        ("RULE:^CN=(.*?),OU=Admin.*$/$1/,DEFAULT", "CN=Duke,OU=ServiceUsers,O=Org,C=US"),
        ("RULE:^CN=(.*?),OU=Admin.*$/$1/", None),
        ("RULE:CN=(Duke)/$1/", None),
        ("RULE:^CN=(.*?),.*$/$1$4$12\\$1/", "Duke$4Duke2$1"),
        ("RULE:^CN=(.*?),.*$/a\\/b/", "a/b"),
        (" DEFAULT , RULE:^.*$/x/ ", "CN=Duke,OU=ServiceUsers,O=Org,C=US"),
    ],
)
def test_first_rule_that_matches_names_the_principal(rules: str, expected: str | None) -> None:
    subject = certificate(
        [Attribute(NameOID.COUNTRY_NAME, "US")],
        [Attribute(NameOID.ORGANIZATION_NAME, "Org")],
        [Attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "ServiceUsers")],
        common_name("Duke"),
    )

    assert expected == principal_name(subject, parse_rules(rules))


# All but the last two are those of Kafka's SslPrincipalMapperTest.
@pytest.mark.parametrize(
    "text",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:^CN=(.*?)$/$1/LU",
        "RULE:^CN=(.*$/$1/",
    ],
)
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid rule"):
        parse_rules(text)


@pytest.mark.parametrize("year", [2026, 2049, 2050, 9999])
def test_end_of_validity_is_read_in_both_notations(year: int) -> None:
    end = dt.datetime(year, 12, 31, 23, 59, 58, tzinfo=dt.UTC)

    assert end == valid_until(certificate(common_name("alice"), end=end))
