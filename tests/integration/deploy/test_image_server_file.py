"""The server image's Containerfile, read and not built."""

import re

from support.fixtures.server_image import CONTAINERFILE


def test_the_image_is_pinned_and_nobody_in_particular() -> None:
    text = CONTAINERFILE.read_text()
    [base] = re.findall(r"^ARG PYTHON=\S+:(\S+)$", text, re.MULTILINE)
    assert re.match(r"3\.\d+\.\d+-slim", base)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON}"}
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] == "65532:65532", "the chart says the same"
