import asyncio
from datetime import timedelta

from gpudev.domain.errors import Unavailable
from gpudev.processor.workers import WorkLoop

LONG = timedelta(hours=1)


class Rounds:
    def __init__(self, *errors: Exception) -> None:
        self.errors, self.count, self.has_run = list(errors), 0, asyncio.Event()

    async def run(self) -> timedelta:
        self.count += 1
        self.has_run.set()
        if self.errors:
            raise self.errors.pop(0)
        return LONG

    async def wait(self) -> None:
        await asyncio.wait_for(self.has_run.wait(), 10)
        self.has_run.clear()


async def test_a_round_follows_each_wake_up() -> None:
    rounds = Rounds()
    loop = WorkLoop("test", rounds.run, rest=LONG)
    running = asyncio.create_task(loop.run())
    await rounds.wait()
    loop.wake()
    await rounds.wait()
    assert rounds.count == 2
    running.cancel()


async def test_a_round_that_fails_is_followed_by_another_after_a_rest() -> None:
    rounds = Rounds(Unavailable("away"), ValueError("broken"))
    running = asyncio.create_task(WorkLoop("test", rounds.run, rest=timedelta(0)).run())
    for _ in range(3):
        await rounds.wait()
    assert not running.done()
    running.cancel()


async def test_whoever_may_not_act_runs_no_round() -> None:
    rounds, may_act = Rounds(), False
    loop = WorkLoop("test", rounds.run, rest=LONG)
    running = asyncio.create_task(loop.run(lambda: may_act))
    await asyncio.sleep(0)
    assert rounds.count == 0
    may_act = True
    loop.wake()
    await rounds.wait()
    running.cancel()
