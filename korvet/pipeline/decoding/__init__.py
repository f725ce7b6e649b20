"""Archived records become typed rows: JSON, Avro and Protobuf values turn into columns, or into rows of a dlq table.

Nothing here knows a broker. Values come in the archive's columns, and what one cannot be made a row of says why:

- `specification`: what a user says about a topic;
- `json_values`, `avro_values`, `protobuf_values`: bytes become Python values, `confluent` and `registry` where
  schemas are looked up;
- `reshaping`: envelopes, renames and nested fields, one row at a time;
- `names`: JSON fields' names as names of columns;
- `inference`: which columns rows want, `leaves`: whether a value fits one, `columns`: Arrow arrays of those which do;
- `batches`: all of this for one Arrow batch;
- `slices`: some of an archive's files become files of the typed table and of its dlq table (`writing`);
- `planning`, `rounds`, `upserting`, `tables`: which offsets, in which order, and how they are committed;
- `distributing`, `job`: who works, on which topics, and how often.
"""
