from __future__ import annotations

from korvet.config.properties import parse_properties


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
