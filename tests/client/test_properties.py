from __future__ import annotations

import pytest

from korvet.client.properties import parse_login_module, parse_properties

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def test_properties_are_parsed_as_in_java() -> None:
    text = r"""
# a comment
! another
security.protocol=SASL_SSL
  sasl.mechanism : PLAIN
retries 3
empty=
path=C\:\\kafka\tx
name=caf\u00e9
sasl.jaas.config=Module required \
    username="a#b" \
    password="c=d";
"""

    assert {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "retries": "3",
        "empty": "",
        "path": "C:\\kafka\tx",
        "name": "café",
        "sasl.jaas.config": 'Module required username="a#b" password="c=d";',
    } == parse_properties(text)


def test_escaped_backslash_does_not_continue_the_line() -> None:
    assert {"a": "1\\", "b": "2"} == parse_properties("a=1\\\\\nb=2\\")


@pytest.mark.parametrize(
    "options, expected",
    [
        ('username="alice" password="secret";', {"username": "alice", "password": "secret"}),
        ("username='alice'\n  password = secret ;", {"username": "alice", "password": "secret"}),
        (r'username="a" password="say \"\\;\"";', {"username": "a", "password": 'say "\\;"'}),
        (";", {}),
    ],
    ids=["as documented", "other quotes", "escapes", "nothing"],
)
def test_login_module_is_parsed(options: str, expected: dict[str, str]) -> None:
    module = parse_login_module(f"{SCRAM} required {options}")

    assert ("ScramLoginModule", expected) == (module.name, module.options)
    assert "secret" not in repr(module)


@pytest.mark.parametrize(
    "text", ["", "alice:secret", f"{SCRAM} required username=secret", f'{SCRAM} username="secret";']
)
def test_invalid_login_module_is_refused_without_revealing_secrets(text: str) -> None:
    with pytest.raises(ValueError, match="is not a login module; accepted: .* with the semicolon") as raised:
        parse_login_module(text)

    assert "secret" not in str(raised.value)
