from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.lake.encoding import Rows, encode_batches, encode_headers
from korvet.lake.schema import HEADERS
from korvet.protocol.compression import Codec
from korvet.protocol.record_batch import decode_records, parse_batches, validate

texts = st.one_of(
    st.none(), st.binary(max_size=20), st.sampled_from([0, 1, 62, 63, 64, 255, 256, 257, 8191]).map(bytes)
)
header_lists = st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=5), texts), max_size=3))


@settings(max_examples=100)
@given(
    st.lists(st.tuples(texts, texts, header_lists), min_size=1, max_size=30),
    st.sampled_from(Codec),
    st.sampled_from([200, 10_000]),
)
def test_encoded_rows_are_decoded_by_the_plain_decoder(
    rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]],
    codec: Codec,
    max_bytes: int,
) -> None:
    headers = pa.array([row[2] for row in rows], HEADERS)
    encoded = encode_batches(
        Rows(
            pa.array([row[0] for row in rows], pa.binary()),
            pa.array([row[1] for row in rows], pa.binary()),
            encode_headers(headers),
        ),
        timestamp=5,
        codec=codec,
        max_bytes=max_bytes,
    )
    found = []
    for buffer in encoded:
        (batch,) = parse_batches(buffer)
        validate(batch)
        records = decode_records(batch)
        assert list(range(len(records))) == [record[0] for record in records]
        assert {5} == {record[1] for record in records}
        assert codec is not Codec.NONE or len(records) == 1 or len(buffer) <= max_bytes
        found += [record[2:] for record in records]

    assert [(key, value, tuple(headers or ())) for key, value, headers in rows] == found
