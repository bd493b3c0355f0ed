"""Progress of a reservation until it is ready or has ended.

Three displays: a countdown drawn in place on a terminal, one line per change in logs, nothing for `--json`.
"""

import gc
import queue
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple, Protocol

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandApi, CommandSession
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.domain.reservations.lifecycle import Status
from gpudev.sdk.errors import ClientError, Forbidden, Unauthenticated, Unreachable
from gpudev.sdk.http import event_stream
from gpudev.sdk.http.endpoints import ApiReply
from gpudev.sdk.http.event_stream import ConnectionLost, JobUpdate, has_ended, is_settled, read_patience
from gpudev.wire.reservations import EtaView, JobView

# Watches a reservation in its own thread, so that the display can redraw meanwhile.


class WatchFailed(NamedTuple):
    """The last event: the watch has failed."""

    error: ClientError


ThreadEvent = JobUpdate | ConnectionLost | WatchFailed


class WatchThread:
    def __init__(self, api: CommandApi, job: JobView, *, patience: float) -> None:
        """`api` must not be shared with other threads."""
        self._api = api
        self._watch = event_stream.JobWatch(
            api.client, job.reservation_id, patience=patience, known_version=job.version
        )
        self._events: queue.SimpleQueue[ThreadEvent] = queue.SimpleQueue()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="job-watch", daemon=True).start()

    def next(self, timeout: float | None) -> ThreadEvent | None:
        """The next event; None after `timeout` seconds without one."""
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def __enter__(self) -> "WatchThread":
        return self

    def __exit__(self, *_: object) -> None:
        """The thread may still be reading; it ends with the next event, or with the process."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set() and (event := self._api.run(self._watch.next())) is not None:
                self._events.put(event)
                if isinstance(event, JobUpdate) and has_ended(event.reply.value):
                    return
        except ClientError as error:
            self._events.put(WatchFailed(error))
        except Exception as error:  # noqa: BLE001 - reported by the main thread
            self._events.put(WatchFailed(CliError(ExitCode.INTERNAL, f"internal error in gpu-dev: {error!r}")))


_TICK = 0.5
_LABEL = 13
_LONGEST_BAR = 50
_MAX_FACT_LINES = 3
"""Lines per fact, so that a long reason does not fill the screen."""
_DRAW_AFTER_SECONDS = 0.15
"""A wait shorter than this shows no countdown."""


class ProgressDisplay(Protocol):
    tick: float | None
    """Seconds between calls of `draw` without events; None: never."""

    def show(self, job: JobView) -> None: ...

    def show_trouble(self, why: str) -> None: ...

    def draw(self) -> None: ...

    def close(self) -> None: ...


def wait_until_ready(
    session: CommandSession, first: ApiReply[JobView], *, quiet: bool, releasing: bool = False
) -> ApiReply[JobView]:
    """The reservation once it is active or has ended. Ctrl-C stops the wait, not the reservation. `releasing`: the
    caller cancels it on Ctrl-C, and lines go to standard error, because standard output belongs to the command."""
    if is_settled(first.value):
        return first
    gc.enable()
    display = _choose_display(quiet, releasing)
    try:
        display.show(first.value)
        with WatchThread(session.new_api(), first.value, patience=read_patience(session.env)) as watch:
            return _follow_with_display(watch, display)
    except KeyboardInterrupt:
        raise _interrupted_error(first.value) from None
    except Unreachable as error:
        raise _unreachable_error(first.value, error) from error
    except (Unauthenticated, Forbidden) as error:
        raise _key_ended_error(first.value, error) from error
    finally:
        display.close()


def check_ready(job: JobView) -> None:
    """Raises ReservationEnded if the reservation has ended."""
    step = f"`gpu-dev status {formatting.short_id(job.reservation_id)} --events` shows its history"
    event_stream.check_ready(job, formatting.describe_end(job), step)


def _follow_with_display(watch: WatchThread, display: ProgressDisplay) -> ApiReply[JobView]:
    pause = _DRAW_AFTER_SECONDS if display.tick is not None else None
    while True:
        match watch.next(pause):
            case JobUpdate(reply):
                display.show(reply.value)
                if is_settled(reply.value):
                    return reply
            case ConnectionLost(why):
                display.show_trouble(why)
            case WatchFailed(error):
                raise error
            case None:
                display.draw()
                pause = display.tick


def _interrupted_error(job: JobView) -> CliError:
    short = formatting.short_id(job.reservation_id)
    return CliError(
        ExitCode.INTERRUPTED,
        f"stopped waiting; reservation {short} is unchanged",
        f"`gpu-dev status {short}` shows it, `gpu-dev connect {short}` waits again, `gpu-dev cancel {short}` ends it",
    )


def _unreachable_error(job: JobView, error: Unreachable) -> ClientError:
    short = formatting.short_id(job.reservation_id)
    step = f"Reservation {short} is unchanged; `gpu-dev status {short}` shows it once the API responds"
    return error.with_next_step(step)


def _key_ended_error(job: JobView, error: ClientError) -> ClientError:
    """The key has expired and cannot be renewed without the user."""
    short = formatting.short_id(job.reservation_id)
    unchanged = f"reservation {short} is unchanged, and `gpu-dev connect {short}` waits again"
    step = f"{error.next_step}; {unchanged}" if error.next_step else unchanged.capitalize()
    return error.with_next_step(step)


def _choose_display(quiet: bool, releasing: bool) -> ProgressDisplay:
    if quiet:
        return SilentDisplay()
    if output.stdout_is_terminal():
        return CountdownDisplay(releasing=releasing)
    return LineDisplay(output.write_note if releasing else output.write_line)


class SilentDisplay:
    tick: float | None = None

    def show(self, job: JobView) -> None:
        pass

    def show_trouble(self, why: str) -> None:
        pass

    def draw(self) -> None:
        pass

    def close(self) -> None:
        pass


class LineDisplay:
    """For logs: one line per change, flushed at once."""

    tick: float | None = None

    def __init__(self, write: Callable[[str], None] = output.write_line) -> None:
        self._write = write
        self._last_state: object = None
        self._expected: datetime | None = None

    def show(self, job: JobView) -> None:
        if self._last_state is None:
            self._write_line(formatting.headline(job))
        now = formatting.utc_now()
        start = job.eta.latest if job.eta else job.estimated_start_at
        minute = None if start is None else start.replace(second=0, microsecond=0)
        state = (job.status, job.queue_position, minute, job.wait_reason, job.step)
        is_empty = state == (Status.PENDING, None, None, None, None)
        has_changed = state != self._last_state or self._has_moved(job.eta, now)
        if has_changed and not is_empty and not is_settled(job):
            self._write_line(f"{job.status}: {formatting.describe_situation(job, now)}")
            self._expected = job.eta.expected if job.eta else None
        self._last_state = state

    def _has_moved(self, eta: EtaView | None, now: datetime) -> bool:
        """The expected start shifts all the time; a tenth of the wait is worth a line."""
        expected = eta.expected if eta else None
        if expected is None or self._expected is None:
            return expected is not self._expected
        shift = abs((expected - self._expected).total_seconds())
        return shift >= max(60.0, 0.1 * (expected - now).total_seconds())

    def show_trouble(self, why: str) -> None:
        if self._last_state != why:
            self._write_line(f"retrying: {why}")
        self._last_state = why

    def draw(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _write_line(self, text: str) -> None:
        self._write(output.clean(text))
        sys.stdout.flush()


class CountdownDisplay:
    """A few lines, redrawn in place."""

    tick: float | None = _TICK

    def __init__(self, *, releasing: bool = False) -> None:
        self._ctrl_c = "releases it" if releasing else "stops waiting"
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

    def show_trouble(self, why: str) -> None:
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
        now = formatting.utc_now()
        short = formatting.short_id(job.reservation_id)
        width = max(_LABEL + 10, _columns() - _LABEL)
        lines = [formatting.headline(job)]
        for name, text in self._facts(job, now):
            first, *others = output.wrap(text, width)[:_MAX_FACT_LINES] or [""]
            lines += [f"  {name:<{_LABEL - 2}}{first}", *(" " * _LABEL + line for line in others)]
        lines.append(f"  Ctrl-C {self._ctrl_c}; `gpu-dev status {short}` shows it ({now.astimezone():%H:%M:%S})")
        return lines

    def _facts(self, job: JobView, now: datetime) -> list[tuple[str, str]]:
        waited = formatting.format_clock(time.monotonic() - self._since[0])
        if job.status == Status.PREPARING:
            facts = [("Preparing", f"{job.step or 'starting'} ({waited})")]
        else:
            place = "not planned yet" if job.queue_position is None else f"position {job.queue_position} in the queue"
            facts = [("Waiting", f"{place} ({waited})"), *_start_facts(job, now)]
            facts += [_bar_fact(job, now), ("Because", job.wait_reason or "")]
        trouble = f"retrying: {self._trouble}" if self._trouble else ""
        facts += [("Note", job.warning or ""), ("Trouble", trouble)]
        return [(name, text) for name, text in facts if text]

    def _paint(self, lines: list[str]) -> None:
        width = _columns()
        over = f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""
        cut = [output.cut(output.clean(line), width) for line in lines]
        if cut:
            cut[-1] = output.paint(cut[-1], "dim")
        sys.stdout.write(over + "".join(line + "\n" for line in cut))
        sys.stdout.flush()
        self._drawn = len(lines)


def _columns() -> int:
    """One less than available: some terminals wrap after the last column."""
    return max(20, output.terminal_columns() - 1)


def _start_facts(job: JobView, now: datetime) -> list[tuple[str, str]]:
    eta = job.eta
    if eta is None:
        start = job.estimated_start_at
        if start is None:
            return [("Start", formatting.start_estimate(job, now))]
        return [("Start", _until(start, now, f" (about {formatting.local_time(start, now)})"))]
    latest = formatting.guaranteed_start(eta.latest, now).removeprefix("at the latest ")
    facts = [("Latest", f"{latest}, {_until(eta.latest, now)}" if eta.latest > now else latest)]
    if eta.expected is None:
        return facts
    likely = formatting.likely_interval(eta, now)
    interval = f" ({formatting.format_percent(eta.confidence)}: {likely})" if likely else ""
    return [("Expected", _until(eta.expected, now, interval)), *facts]


def _bar_fact(job: JobView, now: datetime) -> tuple[str, str]:
    """Waited so far, the expected start and the latest one, as a bar."""
    legend = " # waited | expected ] latest"
    room = _columns() - _LABEL - len(legend)
    bar = formatting.wait_bar(job.created_at, now, job.eta, min(room, _LONGEST_BAR)) if job.eta else ""
    return "", f"{bar}{legend}" if bar else ""


def _until(start: datetime, now: datetime, more: str = "") -> str:
    left = (start - now).total_seconds()
    return (f"in {formatting.format_clock(left)}" if left > 0 else "any moment now") + more
