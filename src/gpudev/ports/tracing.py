"""Where finished spans go. Noting one costs next to nothing and never fails; they may be lost."""

from typing import Protocol

from gpudev.domain.tracing import Span


class Tracer(Protocol):
    @property
    def is_on(self) -> bool:
        """Whether it is worth making spans at all."""
        ...

    def note(self, span: Span) -> None: ...


class Untraced:
    is_on = False

    def note(self, span: Span) -> None: ...


UNTRACED: Tracer = Untraced()
