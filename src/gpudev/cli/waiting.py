"""Waiting for a dev server: follow the reservation until it is ready or has ended, and show how far it is.

Three ways to show it: a countdown drawn in place on a terminal, a line per change elsewhere, nothing for programs.
"""

import gc
import sys
import time
from typing import Protocol

from gpudev.cli import output, wording
from gpudev.cli.api import Reply
from gpudev.cli.exits import CliError, Exit
from gpudev.cli.following import Following, GivenUp, Lost, Seen, patience
from gpudev.cli.session import Session
from gpudev.cli.transport import Unreachable
from gpudev.domain.lifecycle import Status
from gpudev.wire.jobs import JobView

_TICK = 0.5
_UNDRAWN = 0.15
"""What is ready sooner than this never flickers up as a countdown."""


class Display(Protocol):
    tick: float | None
    """How often `draw` wants to be called when nothing happens."""

    def show(self, job: JobView) -> None: ...

    def lose(self, why: str) -> None: ...

    def draw(self) -> None: ...

    def close(self) -> None: ...


def wait_until_ready(session: Session, first: Reply[JobView], *, quiet: bool) -> Reply[JobView]:
    """The reservation once it is active or has ended. Ctrl-C stops the waiting, never the reservation."""
    if _is_settled(first.value):
        return first
    gc.enable()
    display = _choose_display(quiet)
    try:
        display.show(first.value)
        with Following(session.new_api, first.value.reservation_id, patience=patience(session.env)) as following:
            return _follow(following, display)
    except KeyboardInterrupt:
        raise _left_alone(first.value) from None
    except Unreachable as error:
        raise _lost_sight(first.value, error) from error
    finally:
        display.close()


def check_ready(job: JobView) -> None:
    """Raise what a reservation that ended means to somebody who waited for it."""
    if wording.has_ended(job):
        raise CliError(
            Exit.RESERVATION_ENDED,
            wording.ending(job),
            f"`gpu-dev status {wording.short_id(job.reservation_id)} --events` shows how it went",
            code=job.status,
        )


def _follow(following: Following, display: Display) -> Reply[JobView]:
    pause = _UNDRAWN if display.tick is not None else None
    while True:
        match following.next(pause):
            case Seen(reply):
                display.show(reply.value)
                if _is_settled(reply.value):
                    return reply
            case Lost(why):
                display.lose(why)
            case GivenUp(error):
                raise error
            case None:
                display.draw()
                pause = display.tick


def _is_settled(job: JobView) -> bool:
    return job.status == Status.ACTIVE or wording.has_ended(job)


def _left_alone(job: JobView) -> CliError:
    short = wording.short_id(job.reservation_id)
    return CliError(
        Exit.INTERRUPTED,
        f"stopped waiting; reservation {short} stays as it is",
        f"`gpu-dev status {short}` shows it, `gpu-dev connect {short}` waits on, `gpu-dev cancel {short}` ends it",
    )


def _lost_sight(job: JobView, error: Unreachable) -> CliError:
    short = wording.short_id(job.reservation_id)
    step = f"Reservation {short} stays as it is; `gpu-dev status {short}` shows it once the API answers"
    return CliError(Exit.UNREACHABLE, error.message, step)


def _choose_display(quiet: bool) -> Display:
    if quiet:
        return Nothing()
    return Countdown() if output.stdout_is_terminal() else Lines()


class Nothing:
    tick: float | None = None

    def show(self, job: JobView) -> None:
        pass

    def lose(self, why: str) -> None:
        pass

    def draw(self) -> None:
        pass

    def close(self) -> None:
        pass


class Lines:
    """For logs: one line whenever something is different, and at once."""

    tick: float | None = None

    def __init__(self) -> None:
        self._told: object = None

    def show(self, job: JobView) -> None:
        if self._told is None:
            self._say(wording.headline(job))
        start = job.estimated_start_at
        minute = None if start is None else start.replace(second=0, microsecond=0)
        state = (job.status, job.queue_position, minute, job.wait_reason, job.step)
        says_nothing = state == (Status.PENDING, None, None, None, None)
        if state != self._told and not says_nothing and not _is_settled(job):
            self._say(f"{job.status}: {wording.situation(job, wording.utc_now())}")
        self._told = state

    def lose(self, why: str) -> None:
        if self._told != why:
            self._say(f"trying again: {why}")
        self._told = why

    def draw(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _say(self, text: str) -> None:
        output.say(output.clean(text))
        sys.stdout.flush()


class Countdown:
    """A few lines, drawn over themselves."""

    tick: float | None = _TICK

    def __init__(self) -> None:
        self._job: JobView | None = None
        self._trouble: str | None = None
        self._drawn = 0
        self._shown = False
        self._since = (time.monotonic(), "")

    def show(self, job: JobView) -> None:
        if job.status != self._since[1]:
            self._since = (time.monotonic(), job.status)
        self._job, self._trouble = job, None
        if self._shown:
            self.draw()

    def lose(self, why: str) -> None:
        self._trouble = why
        if self._shown:
            self.draw()

    def draw(self) -> None:
        self._shown = True
        if self._job is not None:
            self._paint(self._lines(self._job))

    def close(self) -> None:
        self._paint([])
        sys.stdout.flush()

    def _lines(self, job: JobView) -> list[str]:
        now = wording.utc_now()
        short = wording.short_id(job.reservation_id)
        lines = [wording.headline(job)]
        waited = wording.clock(time.monotonic() - self._since[0])
        if job.status == Status.PREPARING:
            lines.append(f"  Preparing  {job.step or 'getting it ready'} ({waited})")
        else:
            place = "to be planned" if job.queue_position is None else f"position {job.queue_position} in the queue"
            lines.append(f"  Waiting    {place} ({waited})")
            lines.append(f"  Start      {_countdown(job)}")
            if job.wait_reason:
                lines.append(f"  Because    {job.wait_reason}")
        if job.warning:
            lines.append(f"  Note       {job.warning}")
        if self._trouble:
            lines.append(f"  Trouble    trying again: {self._trouble}")
        lines.append(f"  Ctrl-C leaves it as it is; `gpu-dev status {short}` shows it ({now.astimezone():%H:%M:%S})")
        return lines

    def _paint(self, lines: list[str]) -> None:
        width = max(20, output.terminal_columns() - 1)
        over = f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""
        cut = [output.cut(output.clean(line), width) for line in lines]
        if cut:
            cut[-1] = output.paint(cut[-1], "dim")
        sys.stdout.write(over + "".join(line + "\n" for line in cut))
        sys.stdout.flush()
        self._drawn = len(lines)


def _countdown(job: JobView) -> str:
    now = wording.utc_now()
    if job.estimated_start_at is None:
        return wording.start_estimate(job, now)
    left = (job.estimated_start_at - now).total_seconds()
    if left <= 0:
        return "any moment now"
    return f"in {wording.clock(left)} (about {wording.local_time(job.estimated_start_at, now)})"
