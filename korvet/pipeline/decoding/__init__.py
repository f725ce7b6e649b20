"""Archived records become typed rows: JSON, Avro and Protobuf values turn into columns, or into rows of a dlq table.

Nothing here knows a broker. Values come in the archive's columns, and what one cannot be made a row of says why:

- `specification`: what a user says about a topic;
- `json_values`, `avro_values`, `protobuf_values`: bytes become Python values, `confluent` and `registry` where
  schemas are looked up;
- `reshaping`: envelopes, renames and nested fields, one row at a time;
- `inference`: which columns rows want, `columns`: whether a value fits one, and Arrow arrays of those which do;
- `batches`: all of this for one Arrow batch;
- `slices`: a piece of an archived file becomes files of the typed table and of its dlq table.
"""
