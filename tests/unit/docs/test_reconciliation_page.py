"""docs/operations/reconciliation.md quotes messages that the programs print."""

import re

from support.paths import ROOT

PAGE = (ROOT / "docs" / "operations" / "reconciliation.md").read_text(encoding="utf-8")
OF_AWS = {"is not authorized to perform"}


def test_every_quoted_symptom_is_one_that_we_print() -> None:
    table = PAGE.split("## When something is wrong")[1]
    quoted = [code for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for code in re.findall(r"`(.+?)`", row)]
    words = [part.strip() for code in quoted for part in re.split(r"…|:|\(|\b[A-Z]{3,}\b[/*-]?", code)]
    phrases = {phrase for phrase in words if " " in phrase}
    assert len(phrases) > 8
    source = "".join(path.read_text() for path in sorted((ROOT / "src" / "gpudev").rglob("*.py")))
    assert sorted(phrase for phrase in phrases - OF_AWS if phrase not in source) == []
