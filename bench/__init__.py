"""Reproducible measurements of korvet, beside Apache Kafka and the floor the machine sets. Not part of pass or fail.

`make bench` (`python -m bench`) runs the short form, about eight minutes; `make bench-full` adds loads, record and
batch sizes, and Kafka's own tools. docs/benchmarks.md explains the table. Measurements of the systems alternate (A B A
B …), so that a noisy minute affects all of them. Every count is verified: a run that lost a record is an error, not a
figure.
"""
