"""The data source in Spark over TLS: with every mechanism of SASL, and with a client certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.certificates import Authority
from tests.clients.secured import PASSWORD, PASSWORDS, secured_brokers, token
from tests.processes import KorvetProcess

pytestmark = pytest.mark.spark

MODULES = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def brokers(authority: Authority) -> Iterator[dict[str, KorvetProcess]]:
    with secured_brokers(authority) as running:
        yield running


def login(mechanism: str, folder: Path) -> dict[str, str]:
    """Return the options of a user who authenticates with that mechanism."""
    if mechanism == "OAUTHBEARER":
        (folder / "token").write_text(token()[0])
        return {
            "kafka.sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;",
            "kafka.sasl.oauthbearer.token.endpoint.url": (folder / "token").as_uri(),
        }
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    text = f'{MODULES}.{module} required username="alice" password="{PASSWORD}";'
    return {"kafka.sasl.jaas.config": text}


@pytest.mark.parametrize("mechanism", [*PASSWORDS, "OAUTHBEARER", ""])
def test_rows_are_written_and_read_over_tls(
    spark: SparkSession,
    brokers: dict[str, KorvetProcess],
    authority: Authority,
    tmp_path: Path,
    topic: str,
    mechanism: str,
) -> None:
    protocol = "SASL_SSL" if mechanism else "SSL"
    options = {
        "kafka.bootstrap.servers": brokers[protocol].bootstrap_servers,
        "kafka.security.protocol": protocol,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority.ca),
    }
    if mechanism:
        options |= {"kafka.sasl.mechanism": mechanism} | login(mechanism, tmp_path)
    else:
        options |= {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.location": str(authority.client),
        }
    rows = spark.range(3).selectExpr("cast(id as string) as value")
    rows.write.format("korvet").options(**options).option("topic", topic).mode("append").save()
    back = spark.read.format("korvet").options(**options).option("subscribe", topic).load().collect()

    assert [b"0", b"1", b"2"] == sorted(bytes(row.value) for row in back)
