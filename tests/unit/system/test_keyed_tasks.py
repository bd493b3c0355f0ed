import asyncio

from gpudev.keyed_tasks import KeyedTasks


class Work:
    """Begins, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun, self.may_end = 0, asyncio.Event()

    async def run(self) -> None:
        self.begun += 1
        await self.may_end.wait()


async def let_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_key_has_one_task_however_often_it_is_started() -> None:
    tasks, work = KeyedTasks[str, None]("test"), Work()
    first = tasks.start("a", work.run)
    assert not tasks.was_requested_again("a")
    assert tasks.start("a", work.run) is first
    assert tasks.was_requested_again("a")
    work.may_end.set()
    await tasks.wait_idle()
    assert work.begun == 1
    assert "a" not in tasks
    tasks.start("a", work.run)
    assert not tasks.was_requested_again("a"), "what was wanted of the one before is forgotten"
    await tasks.wait_idle()
    assert work.begun == 2


async def test_no_more_are_at_work_than_allowed() -> None:
    tasks, work = KeyedTasks[int, None]("test", at_once=2), Work()
    for key in range(5):
        tasks.start(key, work.run)
    await let_run()
    assert work.begun == 2
    work.may_end.set()
    await tasks.wait_idle()
    assert work.begun == 5


async def test_one_that_waits_for_another_takes_no_slot() -> None:
    tasks, first, second, other = KeyedTasks[str, None]("test", at_once=2), Work(), Work(), Work()
    tasks.start("second", second.run, after=tasks.start("first", first.run))
    tasks.start("other", other.run)
    await let_run()
    assert (first.begun, second.begun, other.begun) == (1, 0, 1)
    first.may_end.set()
    await let_run()
    assert second.begun == 1
    await tasks.close()


async def test_its_end_is_told_when_the_key_is_free_again() -> None:
    free: list[bool] = []

    def ended(key: str, _: "asyncio.Task[None]") -> None:
        free.append(key not in tasks)

    tasks, work = KeyedTasks[str, None]("test", on_end=ended), Work()
    work.may_end.set()
    tasks.start("a", work.run)
    await tasks.wait_idle()
    assert free == [True]


async def test_closing_ends_them_all_and_those_of_other_keys_can_be_ended_alone() -> None:
    tasks, work = KeyedTasks[str, None]("test"), Work()
    kept, dropped = tasks.start("kept", work.run), tasks.start("dropped", work.run)
    tasks.cancel_all_but({"kept"})
    await asyncio.wait({dropped})
    assert "kept" in tasks
    assert "dropped" not in tasks
    await tasks.close()
    assert kept.cancelled()
    assert "kept" not in tasks
