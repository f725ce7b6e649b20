"""Protobuf values, plain and framed, become rows of a message type; protoc and Google's library made the bytes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import message_factory

from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.protobuf_schemas import compiled, message_type
from tests.pipeline.confluent_serializers import Serializers
from tests.pipeline.decoding import Lake
from tests.pipeline.registries import FakeRegistry, framed

pytestmark = pytest.mark.slow

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Other { int32 x = 1; }
message Order {
  enum State { NEW = 0; PAID = 1; }
  message Line { string sku = 1; uint32 count = 2; }
  int64 id = 1;
  optional string note = 2;
  repeated Line lines = 3;
  map<string, double> prices = 4;
  State state = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.Int32Value maybe = 7;
  uint64 large = 8;
  bytes raw = 9;
  google.protobuf.Struct free = 10;
  oneof how { bool cash = 11; float card = 12; }
  Line first = 13;
}
"""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Any]:
    """The class for a message type of a .proto."""

    def made(text: str, name: str) -> Any:
        folder = tmp_path_factory.mktemp("proto")
        (folder / "some.proto").write_text(text)
        return message_factory.GetMessageClass(message_type(compiled("some.proto", folder, "it"), name))

    return made


def proto(lake: Lake, text: str, name: str = "order.proto") -> str:
    (lake.folder / name).write_text(text)
    return str(lake.folder / name)


def test_every_kind_of_field_has_its_column(lake: Lake, classes: Callable[[str, str], Any]) -> None:
    order = classes(ORDER, "shop.Order")
    full = order(id=-5, note="", state=1, large=2**64 - 1, raw=b"\xff", card=0.5)
    full.lines.add(sku="a", count=2**32 - 1)
    full.prices["x"] = 0.1
    full.at.FromDatetime(dt.datetime(2026, 1, 31, 12, 0, 0, 7, dt.UTC))
    full.maybe.value = 0
    full.free.update({"k": [1, "two"]})
    full.first.sku = "f"
    lake.archive([full.SerializeToString(), b"", None])

    lake.decode(format="protobuf", schema_file=proto(lake, ORDER), message="shop.Order")

    rows = [{name: value for name, value in row.items() if name[0] != "_"} for row in lake.rows()]
    assert {
        "id": -5,
        "note": "",
        "lines": [{"sku": "a", "count": 2**32 - 1}],
        "prices": [("x", 0.1)],
        "state": "PAID",
        "at": dt.datetime(2026, 1, 31, 12, 0, 0, 7, dt.UTC),
        "maybe": 0,
        "large": Decimal(2**64 - 1),
        "raw": b"\xff",
        "free": '{"k": [1.0, "two"]}',
        "cash": None,
        "card": 0.5,
        "first": {"sku": "f", "count": 0},
    } == rows[0]
    assert {
        "id": 0,
        "note": None,
        "lines": [],
        "prices": [],
        "state": "NEW",
        "at": None,
        "maybe": None,
        "large": Decimal(0),
        "raw": b"",
        "free": None,
        "cash": None,
        "card": None,
        "first": None,
    } == rows[1]


def test_every_kind_of_bad_value_is_reported_with_its_error(
    lake: Lake, classes: Callable[[str, str], Any]
) -> None:
    order = classes(ORDER, "shop.Order")
    changed = classes('syntax = "proto3"; message A { string id = 1; int32 new = 99; }', "A")
    newer = classes('syntax = "proto3"; message A { int64 id = 1; int32 new = 99; }', "A")
    nanos = order(id=1)
    nanos.at.nanos = 1
    late = order(id=1)
    late.at.seconds = 253_402_300_799 + 1
    values = [
        order(id=1).SerializeToString(),
        b"\xff",
        order(id=1, note="abc").SerializeToString()[:-1],
        changed(id="x").SerializeToString(),
        order(state=7).SerializeToString(),
        nanos.SerializeToString(),
        late.SerializeToString(),
        newer(id=2, new=3).SerializeToString(),
    ]
    lake.archive(values)

    lake.decode(format="protobuf", schema_file=proto(lake, ORDER), message="shop.Order")

    assert [1, 2] == lake.values("id")
    bad = lake.bad()
    assert [1, 2, 3, 4, 5, 6] == list(bad)
    assert bad[1].startswith("$: is not a shop.Order: ")
    assert bad[2].startswith("$: is not a shop.Order: ")
    assert "$: id (field 1) was written with another type, or with an unknown constant" == bad[3]
    assert "$: state: 7 is not a constant of shop.Order.State" == bad[4]
    assert "$: a timestamp has 1 nanoseconds, which truncate_nanoseconds = true would cut off" == bad[5]
    assert "$: a timestamp of 253402300800 s is out of range" == bad[6]


def test_frames_identify_schema_and_message(
    lake: Lake, fake: FakeRegistry, classes: Callable[[str, str], Any]
) -> None:
    common = 'syntax = "proto3"; package c; message Money { int64 cents = 1; }'
    fake.register("money", common, "PROTOBUF")
    text = """
        syntax = "proto3"; package shop; import "common/money.proto";
        message First { message Nested { int32 n = 1; c.Money price = 2; } string f = 1; }
        message Second { string s = 1; }
    """
    references = [{"name": "common/money.proto", "subject": "money", "version": 1}]
    number = fake.register("orders-value", text, "PROTOBUF", references)
    avro = fake.register("third", '"string"')
    standalone = text.replace('import "common/money.proto";', "").replace("c.Money", "Money")
    nested = classes(standalone + "message Money { int64 cents = 1; }", "shop.First.Nested")
    payload = nested(n=5, price={"cents": 250}).SerializeToString()
    path = b"\x04\x00\x00"  # two indexes, 0 and 0
    lake.archive(
        [
            framed(number, payload, path),
            framed(number, b"", b"\x00"),
            framed(number, b"", b"\x02\x02"),
            framed(number, payload, b"\x02\x08"),
            framed(avro, payload, path),
            framed(4, payload, path),
            framed(number, b"", b"\x04\x80"),
            b"\x01\x00\x00\x00\x00",
        ]
    )

    lake.decode(format="protobuf", registry=fake.url, message="shop.First.Nested")

    assert [(5, {"cents": 250})] == lake.values("n", "price")
    bad = lake.bad()
    assert "$: is a shop.First, not a shop.First.Nested" == bad[1]
    assert "$: is a shop.Second, not a shop.First.Nested" == bad[2]
    assert f"$: names message [4] of schema {number}, which has none there" == bad[3]
    assert f"$: schema {avro} is one for AVRO, not for PROTOBUF" == bad[4]
    assert "has no schemas/ids/4" in bad[5]
    assert "$: ends within its message indexes" == bad[6]
    assert (
        "$: does not begin with 0 and a schema's id, or with 1 and its GUID, but with 01 00 00 00 00"
        == bad[7]
    )


def test_values_of_confluents_serializer_are_decoded_with_their_imports(
    lake: Lake, fake: FakeRegistry
) -> None:
    common = """
        syntax = "proto3"; package shop.base; import "google/protobuf/timestamp.proto";
        message Money { int64 cents = 1; google.protobuf.Timestamp at = 2; }
    """
    text = """
        syntax = "proto3"; package shop; import "base/money.proto"; import "google/type/date.proto";
        import "google/protobuf/wrappers.proto";
        message Order { base.Money price = 1; google.type.Date day = 2; google.protobuf.StringValue note = 3; }
    """
    (lake.folder / "base").mkdir()
    proto(lake, common, "base/money.proto")
    proto(lake, text)
    order = message_factory.GetMessageClass(message_type(compiled("order.proto", lake.folder, "it"), None))
    value = order(price={"cents": 250}, day={"year": 2026, "month": 1}, note={"value": "n"})
    value.price.at.FromDatetime(dt.datetime(2026, 1, 31, tzinfo=dt.UTC))
    written = [Serializers(fake, in_headers=each).protobuf(value) for each in (False, True)]
    # Registries that keep the source, as Confluent's does, have the import as a reference as well.
    fake.register("base", common, "PROTOBUF")
    number = fake.register(
        "orders-value", text, "PROTOBUF", [{"name": "base/money.proto", "subject": "base", "version": 1}]
    )
    lake.archive(
        [each for each, _ in written] + [framed(number, value.SerializeToString(), b"\0")],
        headers=[[], written[1][1], []],
    )

    lake.decode(format="protobuf", registry=fake.url)

    price = {"cents": 250, "at": dt.datetime(2026, 1, 31, tzinfo=dt.UTC)}
    assert [(price, {"year": 2026, "month": 1, "day": 0}, "n")] * 3 == lake.values("price", "day", "note")
    assert {} == lake.bad()


def test_schema_with_an_import_that_is_no_reference_is_refused(lake: Lake, fake: FakeRegistry) -> None:
    text = 'syntax = "proto3"; import "confluent/meta.proto"; message A { int32 x = 1; }'
    lake.archive([framed(fake.register("orders-value", text, "PROTOBUF"), b"", b"\0")])

    with pytest.raises(
        SchemaFault, match="subject orders-value: The Protobuf schema does not compile: confluent/meta"
    ):
        lake.decode(format="protobuf", registry=fake.url)


@pytest.mark.parametrize(
    "text, message, error",
    [
        (
            'syntax = "proto3"; message A { nothing x = 1; }',
            None,
            'does not compile: order.proto:1:32: "nothing"',
        ),
        ('syntax = "proto3"; message A {}', "B", "holds no message B; it holds A"),
        ('syntax = "proto3";', None, "holds no message"),
        ('syntax = "proto3"; message A { A next = 1; }', None, r"\$.next: A holds itself"),
        ('syntax = "proto3"; import "other.proto";', None, "other.proto: File not found"),
        (
            'import "google/protobuf/any.proto"; message A { nothing x = 1; }',
            None,
            '"nothing"|Expected "required"',
        ),
    ],
)
def test_unusable_schema_is_refused(lake: Lake, text: str, message: str | None, error: str) -> None:
    lake.archive([b""])
    settings = {"message": message} if message else {}

    with pytest.raises(SchemaFault, match=error):
        lake.decode(format="protobuf", schema_file=proto(lake, text), **settings)


def test_compiled_schema_is_accepted(lake: Lake, classes: Callable[[str, str], Any]) -> None:
    text = 'syntax = "proto3"; message A { int32 x = 1; }'
    proto(lake, text)
    (lake.folder / "a.desc").write_bytes(compiled("order.proto", lake.folder, "it"))
    (lake.folder / "bad.desc").write_bytes(b"\xff\xff")
    lake.archive([classes(text, "A")(x=3).SerializeToString()])

    lake.decode(format="protobuf", schema_file=str(lake.folder / "a.desc"))

    assert [3] == lake.values("x")
    lake.archive([b""])
    with pytest.raises(SchemaFault, match="The Protobuf schema cannot be used"):
        lake.decode(format="protobuf", schema_file=str(lake.folder / "bad.desc"))
