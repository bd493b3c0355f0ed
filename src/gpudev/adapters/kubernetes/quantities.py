"""Kubernetes' way to write amounts ("250m", "64Gi", "1e3"): the whole grammar, because anybody's pod may use it."""

import re
from functools import lru_cache

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
_FACTORS = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    **{letter: 1000.0**power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
}


@lru_cache(maxsize=4096)  # the same few amounts are written in thousands of pods
def parse_quantity(text: str) -> float:
    """Raises ValueError for what is no quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    number, exponent, suffix = match.groups()
    value = float(number)
    if exponent is not None:
        return value * 10.0 ** int(exponent)
    return value * _FACTORS[suffix] if suffix else value
