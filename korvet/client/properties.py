"""Parsers for the configuration of Java clients: properties files, and the login module in `sasl.jaas.config`.

Error messages never quote the input, because it contains passwords.
"""

from __future__ import annotations

import re

from attrs import field, frozen

ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\$")
PAIR = re.compile(r"((?:\\.|[^\s:=\\])*)(?:\s*[:=]\s*|\s+|$)(.*)", re.DOTALL)
MODULE = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*)", re.DOTALL)
OPTION = re.compile(
    r"""\s*([\w.$-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;"']+))""", re.DOTALL
)


@frozen
class LoginModule:
    """The value of `sasl.jaas.config`: the name of a class without its package, and its options."""

    name: str
    options: dict[str, str] = field(repr=False)


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the settings of a file in the format of `java.util.Properties`.

    A line is `name=value`, `name: value` or `name value`; `#` and `!` begin comments, a backslash at the end of a line
    continues it on the next line, and `\t`, `\n`, `\u0041` and so on are escape sequences.
    """
    settings: dict[str, str] = {}
    lines = iter(text.splitlines())
    for first in lines:
        line = first.lstrip()
        if not line or line[0] in "#!":
            continue
        while CONTINUED.search(line):
            line = line[:-1] + next(lines, "").lstrip()
        match = PAIR.fullmatch(line)
        if match is not None:
            settings[_unescaped(match[1])] = _unescaped(match[2])
    return settings


def parse_login_module(text: str) -> LoginModule:
    """Parse `org.apache.kafka.….PlainLoginModule required username="…" password="…";`. Raises ValueError."""
    match = MODULE.match(text)
    if match is None:
        raise ValueError(ACCEPTED_LOGIN)
    options: dict[str, str] = {}
    rest, end = match[2], 0
    while option := OPTION.match(rest, end):
        double, single, bare = option[2], option[3], option[4]
        options[option[1]] = next(_unescaped(each) for each in (double, single, bare) if each is not None)
        end = option.end()
    if rest[end:].strip() != ";":
        raise ValueError(ACCEPTED_LOGIN)
    return LoginModule(match[1].rpartition(".")[2], options)


ACCEPTED_LOGIN = (
    "is not a login module; accepted: "
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…"; '
    "(or scram.ScramLoginModule), with the semicolon"
)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", _character, text, flags=re.DOTALL)


def _character(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) == 5 else ESCAPES.get(code, code)
