"""The Hypothesis strategies: what they generate is valid, and covers every API and version."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from korvet.handlers import APIS
from korvet.protocol.connection import Connection, Request
from korvet.protocol.record_batch import RecordBatch, decode_records, validate
from korvet.testing.strategies import GeneratedRequest, batches, records, requests, requests_of, topic_names

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(PATIENT, max_examples=100)
@given(requests())
def test_requests_are_read_as_they_were_written(generated: GeneratedRequest) -> None:
    connection = Connection(APIS, max_frame_bytes=1 << 20)
    connection.frames.receive_data(generated.frame)

    read = connection.next_request()

    assert isinstance(read, Request)
    assert (generated.api, generated.version, generated.correlation_id, generated.client_id) == (
        read.api.name,
        read.version,
        read.correlation_id,
        read.client_id,
    )
    assert generated.message == read.body


@pytest.mark.parametrize("name", [each.name for each in APIS.served])
def test_every_api_has_a_strategy_for_every_version(name: str) -> None:
    (served,) = (each for each in APIS.served if each.name == name)
    for version in range(served.min_version, served.max_version + 1):
        requests_of(served.key, version).validate()


@settings(PATIENT, max_examples=50)
@given(batches())
def test_batches_are_valid(generated: RecordBatch) -> None:
    validate(generated)

    assert generated.record_count == len(decode_records(generated))


@settings(PATIENT, max_examples=20)
@given(requests("Fetch", "Produce"), records(), topic_names())
def test_requests_are_of_the_named_apis(generated: GeneratedRequest, record: object, name: str) -> None:
    assert generated.api in ("Fetch", "Produce")
    assert 1 <= len(name) <= 21


def test_unknown_api_is_refused() -> None:
    with pytest.raises(ValueError, match="korvet serves no Fly"):
        requests("Fetch", "Fly")
