"""Benchmarks: each figure is one JSON line, measured against its baseline in the same run."""

import sys
from pathlib import Path

# Benchmarks use the tests' `support` package.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
