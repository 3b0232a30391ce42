"""Run folders: paths, locks, Parquet files."""
