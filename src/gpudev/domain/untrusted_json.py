"""The decoder for JSON that users can write: reports from inside dev servers, above all.

`json.loads` raises RecursionError for deep nesting, which is not a ValueError, and accepts values that nothing else
does: NaN, and text that cannot be encoded. Here every fault is a ValueError, and what is returned is so shallow that
it can be printed, compared and encoded again.
"""

import json
import re
from itertools import accumulate
from typing import Any, NoReturn

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""One without an end matches too: else the search would begin again at each of its quotes."""
_BRACKET = re.compile(r"[\[\]{}]")
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def parse_untrusted_json(text: str | bytes, max_bytes: int = MAX_BYTES) -> Any:
    """Raises ValueError, and nothing else."""
    if len(text) > max_bytes:
        raise ValueError(f"the JSON is too long (expected at most {max_bytes} bytes)")
    decoded = text.decode() if isinstance(text, bytes) else text
    if _nesting_depth(decoded) > MAX_DEPTH:
        raise ValueError(f"the JSON is nested too deeply (expected at most {MAX_DEPTH} levels)")
    try:
        value = _DECODER.decode(decoded)
    except RecursionError as error:  # the caller itself is deep
        raise ValueError("the JSON is nested too deeply") from error
    if "\\ud" in decoded.lower():
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair cannot be encoded
    return value


def _nesting_depth(text: str) -> int:
    """At least the depth at which a parser would arrive. Text that is not JSON may have any."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    brackets = _BRACKET.findall(_STRING.sub("", text))
    return max(accumulate(_STEPS[bracket] for bracket in brackets), default=0)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)
