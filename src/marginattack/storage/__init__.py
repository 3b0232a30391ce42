"""Files on local disks and object stores: atomic writes, Parquet, locks, run folders."""
