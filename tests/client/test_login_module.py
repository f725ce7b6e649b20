from __future__ import annotations

import pytest

from korvet.client.login_module import parse_login_module

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


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
