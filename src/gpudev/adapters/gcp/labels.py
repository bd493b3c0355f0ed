"""Encoding of tags with any text as GCP labels, and back.

Keys and values of labels may contain only a-z, 0-9, - and _, and at most 63 characters. A tag that fits becomes a plain
label. A tag that does not (ada@example.com) is written twice. Under its own key goes a readable value with a hash, for
filters and the console. The exact text goes, with all others that do not fit, as JSON in base 32 into the labels
`gpu-dev-exact-NN`.

If the readable value does not match the exact text, the label was changed by hand, and the label counts. If the
exact text is damaged, the readable value is returned; because of its hash it is never another user's name.

Only labels are used, because a disk's description cannot be changed later.
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
    """Labels of a new resource."""
    return update_labels({}, tags)


def update_labels(labels: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """The labels after setting these tags; all others stay."""
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
        raise Invalid(f"too many tags: they need {len(merged)} labels (GCP allows {MAX_LABELS})")
    return merged


def tags_from_labels(labels: Mapping[str, str]) -> dict[str, str]:
    plain, exact = _split_labels(labels)
    return plain | exact


def readable_value(value: str) -> str:
    """A label value that resembles this text and belongs to no other."""
    digest = base64.b32encode(_hash(value.encode("utf-8", "surrogatepass"))).decode().lower()
    readable = re.sub(r"[^a-z0-9_-]", "_", value.lower())
    return f"{readable[: MAX_LABEL_LENGTH - len(digest) - 2]}--{digest}"


def _split_labels(labels: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The plain labels, and the exact texts that still match theirs."""
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
        raise Invalid(f"tags too long: they need {len(chunks)} labels (GCP allows {MAX_LABELS})")
    return {f"{EXACT_PREFIX}{number:02}": chunk for number, chunk in enumerate(chunks)}


def _unpack_exact(packed: str) -> dict[str, str]:
    """Empty if it is damaged."""
    try:
        content = base64.b32decode(packed.upper() + "=" * (-len(packed) % 8))
    except binascii.Error:
        return {}
    digest, text = content[:_HASH_BYTES], content[_HASH_BYTES:]
    if not text or digest != _hash(text):
        return {}
    exact: dict[str, str] = json.loads(text)
    return exact


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:_HASH_BYTES]
