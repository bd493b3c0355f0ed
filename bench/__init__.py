"""Benchmarks: each figure is one JSON line, measured against its yardstick in the same run."""
