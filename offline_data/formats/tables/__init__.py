"""Tables for `datasets`, pandas and DuckDB: Parquet and Arrow, a row for each step."""
