"""Reproducible measurements of korvet, beside Apache Kafka and the floor the machine sets. Not part of pass or fail.

`make bench` (`python -m bench`) runs the short form, about eight minutes; `make bench-full` adds loads, record and
batch sizes, and Kafka's own tools. docs/benchmarks.md says how to read the table. Every figure is taken in turns with
the others (A B A B …), so that a noisy minute hits all of them, and every count is verified: a run that lost a record
is an error, not a figure.
"""
