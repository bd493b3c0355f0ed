"""The operators' handbooks of the clouds, and the commands in them."""

import re
from collections.abc import Iterator

from support.paths import ROOT

HANDBOOKS = {
    "aws": ROOT / "docs" / "operations" / "aws.md",
    "gcp": ROOT / "docs" / "operations" / "gcp.md",
}


def text_of(cloud: str) -> str:
    return HANDBOOKS[cloud].read_text()


def code_of(cloud: str) -> Iterator[str]:
    """Every line of a block of code, with continued lines put together, and every piece of code in the text."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text_of(cloud), re.MULTILINE | re.DOTALL)
    for block in blocks:
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            yield re.sub(r"\s{2,}#.*$", "", line).strip()
    without = re.sub(r"^```.*?^```$", "", text_of(cloud), flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", without)
