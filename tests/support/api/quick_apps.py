"""Makes apps quick to build, for tests that build one each: importing this is all.

Nearly all of what building an app costs is a validator for every parameter, body and answer of every endpoint, and
they are the same in every app. Here each is made once per test process. They hold no state.
"""

import contextlib
from typing import Any, get_args

from pydantic import TypeAdapter


class _Remembering:
    """Stands for the class where FastAPI makes its validators."""

    def __init__(self) -> None:
        self._made: dict[object, TypeAdapter[Any]] = {}

    def __call__(self, annotation: Any, *, config: Any = None) -> TypeAdapter[Any]:
        try:
            # The type itself, for names are not unique; the rest of it by its words, for it has no other identity.
            key = (get_args(annotation)[0], repr(annotation), repr(config))
            hash(key)
        except (IndexError, TypeError):
            return TypeAdapter(annotation, config=config)
        if key not in self._made:
            self._made[key] = TypeAdapter(annotation, config=config)
        return self._made[key]


with contextlib.suppress(ImportError, AttributeError):  # a FastAPI that keeps it elsewhere is only slower
    from fastapi._compat import v2

    _original = v2.TypeAdapter
    if not isinstance(_original, _Remembering):
        v2.TypeAdapter = _Remembering()  # type: ignore[misc, assignment]
