"""A run: settings, jobs, engines, verification."""
