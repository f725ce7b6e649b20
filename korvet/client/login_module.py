"""A parser for the login module in the `sasl.jaas.config` of Java clients.

Error messages never quote the input, because it contains passwords.
"""

from __future__ import annotations

import re

from attrs import field, frozen

from korvet.config.properties import unescaped

MODULE = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*)", re.DOTALL)
OPTION = re.compile(
    r"""\s*([\w.$-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;"']+))""", re.DOTALL
)


@frozen
class LoginModule:
    """The value of `sasl.jaas.config`: the name of a class without its package, and its options."""

    name: str
    options: dict[str, str] = field(repr=False)


def parse_login_module(text: str) -> LoginModule:
    """Parse `org.apache.kafka.….PlainLoginModule required username="…" password="…";`. Raises ValueError."""
    match = MODULE.match(text)
    if match is None:
        raise ValueError(ACCEPTED_LOGIN)
    options: dict[str, str] = {}
    rest, end = match[2], 0
    while option := OPTION.match(rest, end):
        double, single, bare = option[2], option[3], option[4]
        options[option[1]] = next(unescaped(each) for each in (double, single, bare) if each is not None)
        end = option.end()
    if rest[end:].strip() != ";":
        raise ValueError(ACCEPTED_LOGIN)
    return LoginModule(match[1].rpartition(".")[2], options)


ACCEPTED_LOGIN = (
    "is not a login module; accepted: "
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…"; '
    "(or scram.ScramLoginModule), with the semicolon"
)
