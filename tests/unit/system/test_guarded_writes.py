import pytest

from gpudev.domain.errors import Conflict, Stale
from gpudev.workflows.guarded import retry_on


class Writer:
    def __init__(self, *errors: Exception) -> None:
        self.errors, self.attempts = list(errors), 0

    @retry_on(Stale)
    async def write(self, value: str) -> str:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return value


async def test_a_stale_write_is_made_again() -> None:
    writer = Writer(Stale("moved"), Stale("moved"))
    assert await writer.write("x") == "x"
    assert writer.attempts == 3


async def test_after_five_attempts_it_is_the_callers() -> None:
    writer = Writer(*[Stale("moved")] * 9)
    with pytest.raises(Stale):
        await writer.write("x")
    assert writer.attempts == 5


async def test_another_conflict_is_not_tried_again() -> None:
    writer = Writer(Conflict("no"))
    with pytest.raises(Conflict):
        await writer.write("x")
    assert writer.attempts == 1
