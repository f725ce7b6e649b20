"""The principals of client certificates: the subject's name as Java writes it, and the rules that map it (KIP-371)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from attrs import frozen

#: The attributes that RFC 2253 has keywords for. Java writes all others as their object identifier.
KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
#: The tags of Java's strings: UTF8, Printable, T61, IA5, General, Universal, BMP. Java decodes all as UTF-8.
STRINGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
VERSION: Final = 0xA0
#: Positions among the signed elements: serial number, algorithm, issuer, validity, subject.
VALIDITY: Final = 3
SUBJECT: Final = 4
#: UTCTime and GeneralizedTime, as RFC 5280 limits them.
TIMES: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
OUTER_SPACES: Final = re.compile(r"^ +| +$")
#: As Kafka splits rules.
RULES: Final = re.compile(r"\s*(DEFAULT|RULE:(?:\\.|[^\\/])*/(?:\\.|[^\\/])*/[LU]?.*?|.*?)\s*(?:,\s*|$)")
RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


def subject_name(certificate: bytes) -> str:
    """Return the distinguished name of the subject of a valid certificate in DER, as X500Principal.getName does."""
    subject = _signed(certificate)[SUBJECT]
    return ",".join(reversed([_relative_name(content) for _, content, _ in _elements(subject)]))


def valid_until(certificate: bytes) -> datetime:
    """Return the end of the validity of a certificate in DER."""
    _, (tag, text, _) = _elements(_signed(certificate)[VALIDITY])
    return datetime.strptime(text.decode(), TIMES[tag]).replace(tzinfo=UTC)


def _signed(certificate: bytes) -> list[bytes]:
    """Return the contents of the signed elements, from the serial number on."""
    ((_, body, _),) = _elements(certificate)
    return [content for tag, content, _ in _elements(next(_elements(body))[1]) if tag != VERSION]


def _relative_name(content: bytes) -> str:
    return "+".join(_attribute(attribute) for _, attribute, _ in _elements(content))


def _attribute(content: bytes) -> str:
    (_, identifier, _), (tag, value, encoded) = _elements(content)
    name = _object_identifier(identifier)
    if name not in KEYWORDS or tag not in STRINGS:
        return f"{KEYWORDS.get(name, name)}=#{encoded.hex()}"
    text = ESCAPED.sub(r"\\\g<0>", value.decode("utf-8", "replace")).replace("\0", "\\00")
    return f"{KEYWORDS[name]}=" + OUTER_SPACES.sub(lambda spaces: r"\ " * len(spaces[0]), text)


def _object_identifier(content: bytes) -> str:
    numbers = [0]
    for byte in content:
        numbers[-1] = numbers[-1] << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(0)
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:-1])))


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield tag, content and encoding of each DER element."""
    start = 0
    while start < len(data):
        begin, length = start + 2, data[start + 1]
        if length > 0x7F:
            begin += length & 0x7F
            length = int.from_bytes(data[start + 2 : begin])
        yield data[start], data[begin : begin + length], data[start : begin + length]
        start = begin + length


@frozen
class PrincipalRule:
    """A rule of `ssl.principal.mapping.rules`. DEFAULT has no pattern and leaves names unchanged."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""  # L, U or nothing

    def apply(self, name: str) -> str | None:
        """Return the principal's name, or None if the pattern does not match the whole name."""
        if self.pattern is None:
            return name
        if not self.pattern.fullmatch(name):
            return None
        mapped = self.pattern.sub(self._expanded, name)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped

    def _expanded(self, match: re.Match[str]) -> str:
        return REFERENCE.sub(lambda reference: _referenced(reference, match), self.replacement)


def _referenced(reference: re.Match[str], match: re.Match[str]) -> str:
    """Return the text that `$1` or an escaped character stands for. A reference to no group stands for itself."""
    escaped, digits = reference[1], reference[2]
    if escaped is not None:
        return str(escaped)
    for end in range(len(digits), 0, -1):
        if int(digits[:end]) <= match.re.groups:
            return (match[int(digits[:end])] or "") + digits[end:]
    return reference[0]


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Return the rules of `ssl.principal.mapping.rules`. Raises ValueError."""
    return tuple(_parse_rule(each) for each in RULES.findall(text.strip()) if each)


def _parse_rule(text: str) -> PrincipalRule:
    if text == "DEFAULT":
        return PrincipalRule(None)
    match = RULE.fullmatch(text)
    if match is None:
        raise ValueError(f"invalid rule {text!r}")
    try:
        return PrincipalRule(re.compile(match[1]), match[2], match[3])
    except re.error as error:
        raise ValueError(f"invalid rule {text!r}: {error}") from None


def principal_name(certificate: bytes, rules: tuple[PrincipalRule, ...]) -> str | None:
    """Return the name of a certificate's principal by the first rule that applies, or None if none does."""
    name = subject_name(certificate)
    return next((mapped for rule in rules if (mapped := rule.apply(name)) is not None), None)
