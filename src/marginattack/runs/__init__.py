"""Runs: settings, jobs, shards, engines, verification."""
