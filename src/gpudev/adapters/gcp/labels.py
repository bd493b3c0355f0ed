"""How tags of any text become GCP's labels, and are read again exactly.

A label's key and value may hold a-z, 0-9, - and _ only, and at most 63 of them. What fits is a label as it stands.
What does not (ada@example.com) is written twice: as a readable stand-in with a hash under its own key, so that it can
be filtered by and seen in a console, and exactly, with everything else that does not fit, as JSON in base 32, cut into
`gpu-dev-exact-NN` labels. When the stand-in no longer belongs to the exact text, somebody changed the label by hand:
the label counts. When the exact text is damaged, the stand-in is told, which is nobody's name thanks to its hash.

Labels alone are used, since they are all that can be changed of a disk later; a description is not.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping

from gpudev.domain.errors import Invalid

MAX_LABEL_LENGTH = 63
MAX_LABELS = 64
EXACT_PREFIX = "gpu-dev-exact-"

_VALUE = re.compile(rf"[a-z0-9_-]{{0,{MAX_LABEL_LENGTH}}}")
_KEY = re.compile(rf"[a-z][a-z0-9_-]{{0,{MAX_LABEL_LENGTH - 1}}}")
_EXACT_KEY = re.compile(rf"{EXACT_PREFIX}[0-9]{{2}}")
_HASH_BYTES = 5
"""Eight characters in base 32."""


def labels_from_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Labels for something new."""
    return update_labels({}, tags)


def update_labels(labels: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """These labels with some tags set and everything else as it was."""
    plain, exact = _split_labels(labels)
    for key, value in tags.items():
        plain.pop(key, None)
        exact.pop(key, None)
        if not _is_label_key(key):
            exact[key] = value
        elif _VALUE.fullmatch(value):
            plain[key] = value
        else:
            plain[key] = readable_value(value)
            exact[key] = value
    merged = plain | _pack_exact(exact)
    if len(merged) > MAX_LABELS:
        raise Invalid(f"These tags need {len(merged)} labels; GCP allows {MAX_LABELS}.")
    return merged


def tags_from_labels(labels: Mapping[str, str]) -> dict[str, str]:
    plain, exact = _split_labels(labels)
    return plain | exact


def readable_value(value: str) -> str:
    """A label's value that reads like this text and belongs to no other."""
    mark = base64.b32encode(_hash(value.encode("utf-8", "surrogatepass"))).decode().lower()
    readable = re.sub(r"[^a-z0-9_-]", "_", value.lower())
    return f"{readable[: MAX_LABEL_LENGTH - len(mark) - 2]}--{mark}"


def _split_labels(labels: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The labels that stand for themselves, and the exact texts that still hold."""
    plain = {key: value for key, value in labels.items() if not _EXACT_KEY.fullmatch(key)}
    chunks = [labels[key] for key in sorted(labels) if _EXACT_KEY.fullmatch(key)]
    if not chunks:
        return plain, {}
    exact = {
        key: value
        for key, value in _unpack_exact("".join(chunks)).items()
        if not _is_label_key(key) or plain.get(key) == readable_value(value)
    }
    return plain, exact


def _is_label_key(key: str) -> bool:
    return _KEY.fullmatch(key) is not None and not _EXACT_KEY.fullmatch(key)


def _pack_exact(exact: Mapping[str, str]) -> dict[str, str]:
    if not exact:
        return {}
    text = json.dumps(exact, sort_keys=True, separators=(",", ":")).encode()
    packed = base64.b32encode(_hash(text) + text).decode().rstrip("=").lower()
    chunks = [packed[start : start + MAX_LABEL_LENGTH] for start in range(0, len(packed), MAX_LABEL_LENGTH)]
    if len(chunks) > MAX_LABELS:
        raise Invalid(
            f"These tags are too long for GCP's labels: they need {len(chunks)} and {MAX_LABELS} are allowed."
        )
    return {f"{EXACT_PREFIX}{number:02}": chunk for number, chunk in enumerate(chunks)}


def _unpack_exact(packed: str) -> dict[str, str]:
    """Nothing, if it was damaged."""
    try:
        content = base64.b32decode(packed.upper() + "=" * (-len(packed) % 8))
    except binascii.Error:
        return {}
    told, text = content[:_HASH_BYTES], content[_HASH_BYTES:]
    if not text or told != _hash(text):
        return {}
    exact: dict[str, str] = json.loads(text)
    return exact


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:_HASH_BYTES]
