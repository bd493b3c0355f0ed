"""Benchmarks: each figure is one JSON line, measured against its yardstick in the same run."""

import sys
from pathlib import Path

# What tests and benchmarks share (`support`) is beside the tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
