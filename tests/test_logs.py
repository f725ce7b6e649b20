from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from korvet.config import Config, ConfigError, load_config
from korvet.config.settings import LOG_AREAS
from korvet.logs import JsonFormatter, TextFormatter, configure
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.talk import connect, serving

ESCAPES = "a\x1b[31m\x9b\n\r\u2028\u202eb"


def record(message: str, *arguments: object, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("korvet.server.server", logging.WARNING, "", 0, message, arguments, exc_info)


def text_of(*arguments: Any, process: int | None = None) -> str:
    """Return a line without its time."""
    return TextFormatter(process).format(record(*arguments)).split(" ", 2)[2]


def document_of(*arguments: Any, process: int | None = None) -> dict[str, Any]:
    line = JsonFormatter(process).format(record(*arguments))
    assert line.isascii()
    assert line.isprintable()
    document: dict[str, Any] = json.loads(line)
    return document


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, restored at the end."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)
    for name in ("korvet", "korvet.groups"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_text_has_the_message_and_the_fields_that_it_does_not_contain() -> None:
    fields = {"peer": "127.0.0.1:4711", "client_id": "my app", "api": "Fetch", "principal": None, "error": ""}

    assert "WARNING 127.0.0.1:4711: closed client_id='my app' api=Fetch" == text_of(
        "%(peer)s: closed", fields
    )


def test_text_names_the_process_of_several() -> None:
    assert "WARNING [2] closed" == text_of("closed", process=2)


def test_json_has_all_fields() -> None:
    fields = {"peer": "127.0.0.1:4711", "client_id": "my app", "limit": 3, "principal": None}
    document = document_of("%(peer)s: closed", fields, process=2)

    assert document.pop("time").endswith("+00:00")
    assert {
        "level": "WARNING",
        "area": "server.server",
        "process": 2,
        "message": "127.0.0.1:4711: closed",
        "peer": "127.0.0.1:4711",
        "client_id": "my app",
        "limit": 3,
    } == document


def test_form_of_a_field_in_the_message_is_no_field() -> None:
    fields = {"_group": "group 'g' (Empty)", "group": "g"}

    assert "WARNING group 'g' (Empty) is gone" == text_of("%(_group)s is gone", fields)
    assert "g" == document_of("%(_group)s is gone", fields)["group"]
    assert "_group" not in document_of("%(_group)s is gone", fields)


def test_text_of_clients_is_escaped_and_stays_in_one_line() -> None:
    fields = {"client_id": ESCAPES, "error": ESCAPES}
    line = text_of("closed: %(error)s", fields)

    assert line.isprintable()
    assert r"closed: a\x1b[31m\x9b\n\r\u2028\u202eb client_id='a\x1b[31m" in line
    assert ESCAPES == document_of("closed: %(error)s", fields)["client_id"]


def test_text_of_clients_is_bounded_in_length() -> None:
    fields = {"client_id": "a" * 30_000, "error": "b" * 30_000}

    assert len(text_of("closed: %(error)s", fields)) < 3000
    assert len(json.dumps(document_of("closed: %(error)s", fields))) < 7000


def test_field_cannot_replace_those_of_every_line() -> None:
    assert "WARNING" == document_of("closed", {"level": "forged"})["level"]


def test_traceback_of_an_error_is_in_both_formats() -> None:
    try:
        raise ValueError("bug")
    except ValueError:
        made = record("failed: %(api)s", {"api": "Fetch"}, exc_info=sys.exc_info())

    assert "ValueError: bug" in json.loads(JsonFormatter().format(made))["traceback"]
    assert TextFormatter().format(made).endswith("ValueError: bug")


def test_levels_hold_for_an_area_and_what_is_inside(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("json", ["all=WARNING", "groups=DEBUG"])
    logging.getLogger("korvet.server").info("not logged")
    logging.getLogger("korvet.groups.classic").debug("logged")
    logging.getLogger("elsewhere").info("of a library")

    lines = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert ["logged", "of a library"] == lines


@pytest.mark.parametrize("level", ["groups", "groups=LOUD", "nowhere=INFO", "groups=info"])
def test_levels_that_are_none_are_refused(level: str) -> None:
    with pytest.raises(
        ConfigError, match=r"logging.levels.*accepted: a list of: AREA=LEVEL; areas: all, audit"
    ):
        load_config(flags={"logging.levels": level})


def test_levels_are_separated_by_commas() -> None:
    config = load_config(flags={"logging.levels": "groups=DEBUG, storage.redis=WARNING"})

    assert ("groups=DEBUG", "storage.redis=WARNING") == config.logging_levels


def test_every_area_exists_and_every_package_that_logs_is_one() -> None:
    package = Path(import_module("korvet").__path__[0])
    logging_packages = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if "getLogger(__name__)" in path.read_text(encoding="utf-8")
    }
    programs = {"cli", "pipeline", "lake", "testing", "client", "doctor", "faults"}

    assert set() == {each for each in logging_packages if (package / each).is_dir()} - programs - set(
        LOG_AREAS
    )
    for area in set(LOG_AREAS) - {"all", "audit"}:
        assert (package / area.replace(".", "/")).is_dir()


async def test_requests_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as server, connect(server) as client:
        await client.ask(MetadataRequest(topics=[]), 9)

        assert [] == caplog.records


async def test_line_about_a_connection_has_what_is_known_of_its_client(
    caplog: pytest.LogCaptureFixture, make_line: Callable[[logging.LogRecord], dict[str, Any]]
) -> None:
    async with serving() as server, connect(server) as client:
        name = client.name
        await client.ask(MetadataRequest(topics=[]), 9)
        await client.send(b"\0\0\0\x04\x7f\xff\0\0")
        await client.closed()
    (document,) = [make_line(each) for each in caplog.records if "unknown API key" in each.getMessage()]

    expected = {"peer": name, "listener": "PLAINTEXT", "client_id": "test", "error": "unknown API key 32767"}
    assert expected == {field: document[field] for field in expected}


@pytest.fixture
def make_line() -> Callable[[logging.LogRecord], dict[str, Any]]:
    """Return the JSON line of a record."""

    def make(made: logging.LogRecord) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(JsonFormatter().format(made))
        return document

    return make


def test_default_format_is_text() -> None:
    assert ("text", ()) == (Config().logging_format, Config().logging_levels)


async def test_topics_created_and_deleted_are_logged_with_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "korvet.broker")
    async with serving() as server, connect(server) as client:
        new = CreatableTopic(name="orders", num_partitions=3, replication_factor=1)
        await client.ask(CreateTopicsRequest(topics=[new, new], timeout_ms=1000), 7)
        await client.ask(CreateTopicsRequest(topics=[new], timeout_ms=1000), 7)
        await client.ask(CreateTopicsRequest(topics=[new], timeout_ms=1000), 7)
        await client.ask(DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1000), 5)
        await client.ask(
            MetadataRequest(topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True), 9
        )
        peer = client.name

    lines = [TextFormatter().format(each).split(" ", 3)[3] for each in caplog.records if "topic" in each.msg]
    common = f"peer={peer} listener=PLAINTEXT client_id=test"
    assert lines == [
        f"topic orders was created partitions=3 {common} api=CreateTopics",
        f"topic orders was deleted partitions=3 {common} api=DeleteTopics",
        f"topic auto was created partitions=1 {common} api=Metadata",
    ]
