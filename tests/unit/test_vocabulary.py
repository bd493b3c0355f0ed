"""One vocabulary, one map: the words of docs/glossary.md, and the shape of the tree."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "gpudev"
MOST_MODULES_IN_A_FOLDER = 18
MOST_LINES = 600
FEW_LINES = 60
UNSEARCHABLE = {"find", "note", "of", "get", "keep", "hear", "news", "look", "tell"}
# `client.jobs.get(…)` and its endpoint are found by their resource; a mapping's `get` is Python's.
MAY_SAY_GET = ("api/routes/", "sdk/resources/", "adapters/postgres/queue/estimates.py", "settings/__init__.py")
# JSON fields and columns keep their names.
MAY_BEAR_RETIRED_WORDS = {"seen_at"}
# Declared apart from their only importer, because people look for them by name.
SMALL_BUT_APART = {
    "gpudev.adapters.postgres.access.audit_log",
    "gpudev.planning.reservations.expiry",
}

# Public class names that may stand more than once, because both are what their field calls them.
REPEATED_CLASSES = {
    "Cluster",  # the port, and the SDK's resource
    "Forbidden",  # domain errors, and what a client raises for them
    "NotFound",
    "Unauthenticated",
    "Unavailable",
}


@cache
def retired_words() -> frozenset[str]:
    text = (ROOT / "docs" / "glossary.md").read_text().split("## Retired words")[1]
    rows = re.findall(r"^\| ([a-z, ]+) \|", text, re.MULTILINE)
    return frozenset(word.strip().replace(" ", "_") for row in rows for word in row.split(",")) - {"retired"}


@cache
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def parts_of(name: str) -> set[str]:
    """Snake case and camel case, taken apart."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)}


def names_defined(tree: ast.Module) -> Iterator[str]:
    """Classes, functions, parameters, fields and attributes; local variables are read in one sitting."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
    for scope in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))):
        for statement in scope.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_no_identifier_or_module_bears_a_retired_word() -> None:
    assert "told" in retired_words()
    found = defaultdict(set)
    for path, tree in modules().items():
        for name in {*path.relative_to(SOURCE).with_suffix("").parts, *names_defined(tree)}:
            if name in MAY_BEAR_RETIRED_WORDS:
                continue
            if parts_of(name) & retired_words() or name.strip("_") in retired_words():
                found[str(path.relative_to(SOURCE))].add(name)
    assert not found, dict(found)


def test_a_public_class_name_stands_once() -> None:
    names = Counter(
        node.name
        for tree in modules().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} <= REPEATED_CLASSES


def test_functions_have_names_that_can_be_searched_for() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in UNSEARCHABLE
        if not (node.name == "get" and str(path.relative_to(SOURCE)).startswith(MAY_SAY_GET))
    ]
    assert not found, found


def test_folders_and_files_can_be_read_in_one_sitting() -> None:
    folders = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert not {str(folder): count for folder, count in folders.items() if count > MOST_MODULES_IN_A_FOLDER}
    lengths = {str(path): len(path.read_text().splitlines()) for path in modules()}
    assert not {path: lines for path, lines in lengths.items() if lines > MOST_LINES}


def test_a_small_module_is_an_entry_point_or_has_a_second_importer() -> None:
    importers = _importers()
    lonely = [
        name
        for path, name in _module_names().items()
        if path.name not in ("__init__.py", "__main__.py")
        and len(path.read_text().splitlines()) < FEW_LINES
        and len(importers[name]) < 2
        and not _is_entry_point(path, name)
        and name not in SMALL_BUT_APART
    ]
    assert not lonely, lonely


def test_no_two_modules_import_each_other() -> None:
    importers = _importers()
    imports = defaultdict(set)
    for imported, by in importers.items():
        for name in by:
            imports[name].add(imported)
    assert not list(_circles(imports))


def _module_names() -> dict[Path, str]:
    names = {}
    for path in modules():
        parts = ("gpudev", *path.relative_to(SOURCE).with_suffix("").parts)
        names[path] = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return names


def _importers() -> dict[str, set[str]]:
    """Module → who imports it, within functions as well."""
    names = _module_names()
    known, found = set(names.values()), defaultdict(set)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                candidates = {f"{node.module}.{alias.name}" for alias in node.names} & known or {node.module}
                for name in candidates & known:
                    found[name].add(names[path])
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.name].add(names[path])
    return found


def _is_entry_point(path: Path, name: str) -> bool:
    """Commands, what is started by name or by path, and the package's public face."""
    text = path.read_text()
    return (
        '__name__ == "__main__"' in text
        or "@click." in text
        or any(name in other.read_text() for other in _sources() if other != path)
    )


@cache
def _sources() -> list[Path]:
    return [ROOT / "pyproject.toml", *(path for path in modules() if path.name in ("overview.py", "main.py"))]


def _circles(imports: dict[str, set[str]]) -> Iterator[list[str]]:
    done: set[str] = set()

    def visit(name: str, way: list[str]) -> Iterator[list[str]]:
        if name in way:
            yield way[way.index(name) :]
            return
        if name in done:
            return
        for other in sorted(imports[name]):
            yield from visit(other, [*way, name])
        done.add(name)

    for name in sorted(imports):
        yield from visit(name, [])
