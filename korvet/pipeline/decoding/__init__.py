"""Decode archived records to typed rows: values in JSON, Avro or Protobuf become columns, or rows of a dlq table.

Nothing here needs a broker. Values come in the archive's columns. A value that cannot be decoded gets a reason:

- `specification`: the settings of a topic;
- `json_values`, `json_schema_values`, `avro_values`, `protobuf_values`: bytes to Python values; `confluent` and
  `registry` look up schemas; `record_names` selects the values of one record type;
- `record_keys`: columns for the keys;
- `reshaping`: envelopes, renames and nested fields, one row at a time;
- `names`: JSON field names to column names;
- `inference`: columns for the fields of rows; `leaves`: checks of single values; `columns`: Arrow arrays of values;
- `batches`: all of this for one Arrow batch;
- `slices`: some files of an archive to files of the typed table and of its dlq table (`writing`);
- `planning`, `rounds`, `upserting` (with `row_keys`), `tables`: which offsets to decode, in which order, and how to
  commit them;
- `joining`, `clustering`, `widening`: files of typed tables to other files with the same rows (`rewriting`);
- `distributing`, `job`: where the work runs, for which topics, and how often.
"""
