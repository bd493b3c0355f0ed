"""docs/architecture.md names modules that there are, and counts them right."""

import re
from collections.abc import Iterator

from support.paths import ROOT

SOURCE = ROOT / "src" / "gpudev"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def spelled_out(name: str) -> list[str]:
    """`a.{b,c}` is two."""
    group = re.search(r"\{([^{}]*)\}", name)
    if group is None:
        return [name]
    before, after = name[: group.start()], name[group.end() :]
    return [one for part in group[1].split(",") for one in spelled_out(before + part + after)]


def named_modules() -> Iterator[str]:
    for code in re.findall(r"`([^`\n]+)`", PAGE):
        if re.fullmatch(r"[a-z_.{},0-9/*]+", code) and re.search(r"[./]", code):
            for name in spelled_out(code.replace("/", ".").removeprefix("gpudev.")):
                yield name.removesuffix(".*")


def exists(module: str) -> bool:
    """A module or a package; what follows a module's name is in it."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        path = SOURCE.joinpath(*parts[:end])
        if path.with_suffix(".py").is_file():
            return end == len(parts) or re.search(rf"\b{parts[end]}\b", path.with_suffix(".py").read_text()) is not None
        if path.is_dir():
            return end == len(parts)
    return False


def test_every_module_that_is_named_exists() -> None:
    named = set(named_modules())
    assert len(named) > 150
    assert sorted(module for module in named if not exists(module)) == []


def test_the_path_of_a_reservation_has_as_many_modules_as_it_says() -> None:
    rows = re.findall(r"^\| [^|]+ \| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    counted = [sum(len(spelled_out(code)) for code in re.findall(r"`([^`]+)`", cell)) for _, cell in rows]
    assert counted == [int(number) for number, _ in rows]
    total = re.search(r"^The (\d+) modules that one reservation", PAGE, re.MULTILINE)
    assert total is not None
    assert sum(counted) == int(total[1])
