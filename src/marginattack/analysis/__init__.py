"""Statistics, comparison and diagnosis."""
