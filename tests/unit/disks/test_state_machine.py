"""Two users do anything with their disks in any order, the process dies at any call, and every promise holds."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gpudev.domain.disks.operations import DiskState
from gpudev.domain.errors import GpuDevError, Unavailable
from support.disks.disk_world import ADA, BEN, DiskWorld, Stay
from support.disks.invariants import Watcher
from support.disks.mutants import any_snapshot_will_do, attached_is_no_matter, old_volumes_are_left

NAMES = st.sampled_from(["one", "two", "three"])
USERS = st.sampled_from([ADA, BEN])
ZONES = st.sampled_from(["zone-a", "zone-b"])
CALLS = st.sampled_from(
    ["find_volume", "find_snapshot", "ensure_volume", "ensure_snapshot", "grow_volume", "remove_volume", "tag_volume"]
)
CHOICE = st.integers(0, 10)


class DiskMachine(RuleBasedStateMachine):
    """What is refused is no fault: rules ask for anything."""

    def __init__(self) -> None:
        super().__init__()
        self.world = DiskWorld()
        self.watcher = Watcher(self.world)
        self.world.trouble.listener = self.watcher.check

    # --- people ----------------------------------------------------------------------------------------------------

    @rule(user=USERS, name=NAMES, size=st.sampled_from([None, 20, 50]), zone=st.none() | ZONES)
    def create(self, user: Any, name: str, size: int | None, zone: str | None) -> None:
        with self._refusals():
            self.world.create(user, name, size, zone)

    @precondition(lambda self: self.world.living())
    @rule(choice=CHOICE, zone=ZONES)
    def reserve(self, choice: int, zone: str) -> None:
        with self._refusals():
            self.world.reserve(self._living(choice).disk_id, zone)

    @precondition(lambda self: self.world.living())
    @rule(choice=CHOICE, zone=ZONES, times=st.integers(1, 3))
    def use_a_disk_as_people_do(self, choice: int, zone: str, times: int) -> None:
        disk_id = self._living(choice).disk_id
        with self._refusals():
            for _ in range(times):
                stay = self.world.reserve(disk_id, zone)
                self.world.settle()
                if self.world.start(stay):
                    self.world.write(stay)
                self.world.end(stay)
                self.world.work()
                if self.world.release(stay):  # before its machine let go: only a disk that never was attached
                    self.watcher.check()
                    break
                self.world.let_go(stay)
                self.world.settle()
                assert self.world.release(stay)

    @precondition(lambda self: self.world.stays)
    @rule(choice=CHOICE)
    def start(self, choice: int) -> None:
        stay = self._stay(choice)
        if not stay.ended and self.world.start(stay):
            self.world.write(stay)

    @precondition(lambda self: self.world.stays)
    @rule(choice=CHOICE)
    def write(self, choice: int) -> None:
        """Also after its end, as long as the machine has the disk."""
        stay = self._stay(choice)
        if stay.volume_id is not None:
            self.world.write(stay)

    @precondition(lambda self: self.world.stays)
    @rule(choice=CHOICE)
    def end(self, choice: int) -> None:
        self.world.end(self._stay(choice))

    @precondition(lambda self: self.world.stays)
    @rule(choice=CHOICE)
    def let_go_and_release(self, choice: int) -> None:
        stay = self._stay(choice)
        if stay.ended:
            self.world.let_go(stay)
            self.world.work()
            self.world.release(stay)

    @precondition(lambda self: self.world.stays)
    @rule(choice=CHOICE)
    def release(self, choice: int) -> None:
        """As soon as it is put away, whoever has it attached."""
        self.world.work()
        self.world.release(self._stay(choice))

    @precondition(lambda self: self.world.living())
    @rule(choice=CHOICE)
    def snapshot(self, choice: int) -> None:
        with self._refusals():
            self.world.snapshot(self._living(choice).disk_id)

    @precondition(lambda self: self.world.living())
    @rule(choice=CHOICE, which=CHOICE)
    def restore(self, choice: int, which: int) -> None:
        disk = self._living(choice)
        snapshots = self.world.good_snapshots(disk.disk_id)
        if snapshots:
            with self._refusals():
                self.world.restore(disk.disk_id, snapshots[which % len(snapshots)])

    @precondition(lambda self: self.world.living())
    @rule(choice=CHOICE, name=NAMES, which=st.none() | CHOICE)
    def clone(self, choice: int, name: str, which: int | None) -> None:
        disk = self._living(choice)
        snapshots = self.world.good_snapshots(disk.disk_id)
        chosen = snapshots[which % len(snapshots)] if which is not None and snapshots else None
        if disk.disk_id in self.world.last_seen:
            with self._refusals():
                self.world.clone(disk.disk_id, name, chosen)

    @precondition(lambda self: self.world.living())
    @rule(choice=CHOICE, name=NAMES)
    def rename(self, choice: int, name: str) -> None:
        with self._refusals():
            self.world.rename(self._living(choice).disk_id, name)

    @precondition(lambda self: self.world.living())
    @rule(choice=CHOICE, size=st.sampled_from([5, 15, 40, 60]))
    def resize(self, choice: int, size: int) -> None:
        with self._refusals():
            self.world.resize(self._living(choice).disk_id, size)

    @precondition(lambda self: self.world.living())
    @rule(choice=CHOICE)
    def delete(self, choice: int) -> None:
        with self._refusals():
            self.world.delete(self._living(choice).disk_id)

    @precondition(lambda self: self.world.deleted_at)
    @rule(choice=CHOICE, name=st.none() | NAMES)
    def undelete(self, choice: int, name: str | None) -> None:
        deleted = list(self.world.deleted_at)
        with self._refusals():
            self.world.undelete(deleted[choice % len(deleted)], name)

    # --- the world -------------------------------------------------------------------------------------------------

    @rule()
    def work(self) -> None:
        self.world.work()

    @rule()
    def tidy(self) -> None:
        self.world.tidy()

    @rule(hours=st.sampled_from([0.01, 1, 30, 24 * 16]))
    def time_passes(self, hours: float) -> None:
        self.world.clock.move(hours=hours)

    @rule()
    def snapshots_complete(self) -> None:
        self.world.cloud.complete_snapshots()

    @rule()
    def a_scanner_copies_snapshots(self) -> None:
        if len(self.world.foreign) < 5:
            self.world.scanner_copies()

    @rule(calls=st.integers(1, 25), after=st.booleans())
    def the_process_will_die(self, calls: int, after: bool) -> None:
        self.world.trouble.crash_at = self.world.trouble.calls + calls
        self.world.trouble.after = after

    @rule(call=CALLS, lost=st.booleans())
    def the_cloud_does_not_answer_once(self, call: str, lost: bool) -> None:
        silence = Unavailable("no answer")
        if lost:
            self.world.trouble.lost_answers[call] = silence
        else:
            self.world.trouble.errors[call] = [silence]

    # --- what holds ------------------------------------------------------------------------------------------------

    @invariant()
    def every_promise_holds(self) -> None:
        self.watcher.check()

    def teardown(self) -> None:
        """At rest nothing is leaked, and everybody gets back what they left."""
        world = self.world
        world.trouble.errors.clear()
        world.trouble.lost_answers.clear()
        for stay in list(world.stays.values()):
            world.end(stay)
            world.let_go(stay)
        world.settle()
        for stay in list(world.stays.values()):
            assert world.release(stay)
        world.clock.move(hours=1)
        world.tidy()
        world.settle()
        self.watcher.check()
        self.watcher.nothing_is_leaked()
        for disk in world.living():
            self._use_once_more(disk)
        self.watcher.check()

    def _use_once_more(self, disk: DiskState) -> None:
        stay = self.world.reserve(disk.disk_id, "zone-b")
        self.world.settle()
        assert self.world.start(stay), f"disk {disk.name!r} cannot be used: {self._last_error(disk)}"
        self.world.end(stay)
        self.world.let_go(stay)
        self.world.settle()
        assert self.world.release(stay)

    def _last_error(self, disk: DiskState) -> str:
        errors = [one.error for one in self.world.store.all_operations.values() if one.disk_id == disk.disk_id]
        return errors[-1] or ""

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        with contextlib.suppress(GpuDevError):
            yield

    def _living(self, choice: int) -> DiskState:
        living = self.world.living()
        return living[choice % len(living)]

    def _stay(self, choice: int) -> Stay:
        stays = list(self.world.stays.values())
        return stays[choice % len(stays)]


def _run(examples: int, steps: int = 40) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        DiskMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],  # shrinking would take longer than reading what was done
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_two_users_do_and_whenever_the_process_dies_every_promise_holds() -> None:
    _run(examples=300)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", [any_snapshot_will_do, attached_is_no_matter, old_volumes_are_left], ids=lambda mutant: mutant.__name__
)
def test_the_machine_finds_mutants_by_itself(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        _run(examples=100)


def test_a_day_is_short_compared_with_the_retention() -> None:
    """The machine moves time in steps that end before and after the retention."""
    assert timedelta(hours=24 * 16) < DiskWorld().settings.retention < 2 * timedelta(hours=24 * 16)
