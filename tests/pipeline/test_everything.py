"""Spark reads and writes at a broker of two processes whose options are all on."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.certificates import Authority
from tests.clients.secured import PASSWORD
from tests.everything.brokers import CASES, Case, everything

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.servers]

LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize("case", [case for case in CASES if case.processes > 1], ids=lambda case: case.id)
def test_rows_are_written_and_read_with_all_options_on(
    spark: SparkSession, authority: Authority, case: Case, topic: str
) -> None:
    with everything(case, authority) as broker:
        options = {
            "kafka.bootstrap.servers": f"127.0.0.1:{broker.clients_port}",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(authority.ca),
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": f'{LOGIN} required username="alice" password="{PASSWORD}";',
        }
        # From 7 bytes to 70 kB, so that a fetch has batches below and above the broker's buffers.
        rows = spark.range(600).selectExpr("repeat(concat('row ', id), 1 + id * 20) as value")
        rows.write.format("korvet").options(**options).option("topic", topic).mode("append").save()
        back = spark.read.format("korvet").options(**options).option("subscribe", topic).load()

        found = sorted(bytes(row.value).decode() for row in back.select("value").collect())
        assert sorted(row.value for row in rows.collect()) == found
        assert 600 == broker.metric("korvet_topic_received_records_total", topic=topic)
        assert 600 <= broker.metric("korvet_topic_sent_records_total", topic=topic)
        assert [] == [line for line in broker.log if "Traceback" in line or " ERROR " in line]
        assert 0 == broker.stop()
