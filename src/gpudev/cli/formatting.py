"""Formatting of reservations: times in the local time zone, waits in minutes. Pure; takes `now`."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from gpudev.domain.reservations.lifecycle import Status
from gpudev.wire.reservations import EtaView, GpuUseView, JobView

_COLOURS = {
    Status.PENDING: "yellow",
    Status.QUEUED: "yellow",
    Status.PREPARING: "cyan",
    Status.ACTIVE: "green",
    Status.FAILED: "red",
}
_SOON = 30 * 60.0
"""Seconds before expiry in which commands show a warning."""
_A_MOMENT = 30.0
"""Shorter waits, in seconds, are shown as 'any moment'."""
_SHORTEST_BAR = 10


def utc_now() -> datetime:
    return datetime.now(UTC)


def short_id(reservation_id: str) -> str:
    """The short form that users type."""
    return reservation_id.replace("-", "")[:8]


def colour_of(status: str) -> str:
    return _COLOURS[Status(status)] if status in _COLOURS else "dim"


def outcome(job: JobView) -> str:
    """How it ended ('done', 'exit 17', 'cancelled'), or its status."""
    return job.outcome or job.status


def colour_of_outcome(job: JobView) -> str:
    word = outcome(job)
    if word == "done":
        return "green"
    return "red" if word.startswith("exit ") or word == "killed" else colour_of(job.status)


def time_used(job: JobView, now: datetime) -> str:
    """How long it has run, or did; '-': it never started."""
    if job.launched_at is None:
        return "-"
    return format_duration(((job.reservation_ended or now) - job.launched_at).total_seconds())


def hardware(job: JobView) -> str:
    return format_amount(job.gpu_count, job.gpu_type, job.node_count)


def format_amount(gpu_count: int, gpu_type: str, node_count: int) -> str:
    """'2 x a100', or a CPU type's name alone."""
    nodes = f" on {node_count} nodes" if node_count > 1 else ""
    return f"{gpu_count} x {gpu_type}{nodes}" if gpu_count else gpu_type


def gpu_use(job: JobView) -> str:
    """'GPU 0 87 %, 62 of 80 GB; GPU 1 0 %, 1 of 80 GB', with node names if there are several nodes."""
    uses = job.gpus or ()
    has_nodes = len({use.node for use in uses}) > 1
    return "; ".join(f"{f'{use.node} ' if has_nodes else ''}GPU {use.gpu} {_describe_gpu(use)}" for use in uses)


def _describe_gpu(use: GpuUseView) -> str:
    busy = "?" if use.busy is None else f"{use.busy:.0%}".replace("%", " %")
    if use.memory_used_bytes is None:
        return busy
    used = f"{use.memory_used_bytes / 2**30:.0f}"
    total = "" if use.memory_total_bytes is None else f" of {use.memory_total_bytes / 2**30:.0f}"
    return f"{busy}, {used}{total} GB"


def format_duration(seconds: float) -> str:
    """A duration, rounded to two units."""
    if seconds < 59.5:
        return f"{max(0, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min"


def format_clock(seconds: float) -> str:
    """For countdowns: 1:02:03."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def local_time(time: datetime, now: datetime) -> str:
    """In the local time zone, with its name; with the date unless it is today."""
    try:
        local = time.astimezone()
    except OverflowError:  # the first or last representable day (a file's time can be any)
        local = time.astimezone(UTC)
    day = "" if local.date() == now.astimezone().date() else f"{local:%Y-%m-%d} "
    return f"{day}{local:%H:%M} {local:%Z}".rstrip()


def in_own_zone(text: str, times: Mapping[str, datetime], now: datetime) -> str:
    """A server's text with its UTC times in the local zone. `times`: by how they are written in the text."""
    if not times:
        return text
    longest_first = sorted(times, key=len, reverse=True)  # '2026-03-02 14:05 UTC' contains '14:05 UTC'
    return re.sub("|".join(map(re.escape, longest_first)), lambda found: local_time(times[found[0]], now), text)


def headline(job: JobView) -> str:
    name = f" ({job.name})" if job.name else ""
    length = format_duration(job.duration_hours * 3600)
    return f"Reservation {short_id(job.reservation_id)}{name}: {hardware(job)} for {length}"


def start_estimate(job: JobView, now: datetime) -> str:
    """'expected in about 40 min (20 min to 1 h 30 min), at the latest 14:05 CET', or that the start is not known."""
    if job.eta is None:
        return _start_of_older_server(job, now)
    if abs((job.eta.latest - now).total_seconds()) < _A_MOMENT:
        return "starts any moment"
    parts = (expected_start(job.eta, now), guaranteed_start(job.eta.latest, now))
    return ", ".join(part for part in parts if part)


def _start_of_older_server(job: JobView, now: datetime) -> str:
    """Older servers send one time without an interval, or none if the start is not known."""
    start = job.estimated_start_at
    if start is None:
        if job.estimated_wait_minutes is None:
            return "start not known yet" if job.status == Status.QUEUED else "about to be planned"
        return f"starts in about {format_duration(job.estimated_wait_minutes * 60)}"
    left = (start - now).total_seconds()
    if left <= 0:
        return "starts any moment"
    return f"starts about {local_time(start, now)} (in {format_duration(left)})"


def expected_start(eta: EtaView, now: datetime) -> str:
    """'expected in about 40 min (20 min to 1 h 30 min)'; empty: not known yet."""
    if eta.expected is None:
        return ""
    likely = likely_interval(eta, now)
    return f"expected {in_about(eta.expected, now)}{f' ({likely})' if likely else ''}"


def in_about(expected: datetime, now: datetime) -> str:
    left = (expected - now).total_seconds()
    return "any moment" if left < _A_MOMENT else f"in about {format_duration(left)}"


def likely_interval(eta: EtaView, now: datetime) -> str:
    """'20 to 45 min', 'up to 45 min'; empty: the interval is too short to show."""
    if eta.interval_from is None or eta.interval_to is None:
        return ""
    least, most = ((time - now).total_seconds() for time in (eta.interval_from, eta.interval_to))
    if most < _A_MOMENT:
        return ""
    if least < _A_MOMENT:
        return f"up to {format_duration(most)}"
    shortest, longest = format_duration(least), format_duration(most)
    if shortest == longest:
        return ""
    same_unit = shortest.endswith(" min") and longest.endswith(" min") and " h " not in shortest + longest
    return f"{shortest.removesuffix(' min')} to {longest}" if same_unit else f"{shortest} to {longest}"


def wait_bar(since: datetime, now: datetime, eta: EtaView, width: int) -> str:
    """'[#####----|----------]': waited so far, the expected start, and at the end the latest one. Empty: no room, or
    the latest start has passed."""
    total, room = (eta.latest - since).total_seconds(), width - 2
    if room < _SHORTEST_BAR or eta.latest <= now or total <= 0:
        return ""

    def place(time: datetime) -> int:
        return min(room - 1, max(0, int((time - since).total_seconds() / total * room)))

    cells = ["#" if index < place(now) else "-" for index in range(room)]
    if eta.expected is not None:
        cells[max(place(eta.expected), place(now))] = "|"
    return f"[{''.join(cells)}]"


def guaranteed_start(latest: datetime, now: datetime) -> str:
    """'at the latest 14:05 CET'. Says so if that time has passed."""
    late = (now - latest).total_seconds() > _A_MOMENT
    return f"at the latest {local_time(latest, now)}{', which has passed' if late else ''}"


def format_percent(confidence: float) -> str:
    return f"{100 * confidence:.0f} %"


def time_remaining(job: JobView, now: datetime) -> str:
    """'ends 18:30 CET (in 3 h 20 min)'."""
    if job.expires_at is None:
        return ""
    left = (job.expires_at - now).total_seconds()
    when = local_time(job.expires_at, now)
    return f"ends {when} (in {format_duration(left)})" if left > 0 else f"ended {when}"


def expiry_warning(job: JobView, now: datetime) -> str:
    """'ends in 12 min: `gpu-dev extend 1a2b3c4d --hours 1` extends it'; empty: it does not end soon."""
    if job.status != Status.ACTIVE or job.expires_at is None:
        return ""
    left = (job.expires_at - now).total_seconds()
    if not 0 < left <= _SOON:
        return ""
    return f"ends in {format_duration(left)}: `gpu-dev extend {short_id(job.reservation_id)} --hours 1` extends it"


def describe_situation(job: JobView, now: datetime) -> str:
    """The current situation in one line."""
    match job.status:
        case Status.PENDING | Status.QUEUED:
            place = f"position {job.queue_position}, " if job.queue_position is not None else ""
            why = f"; {job.wait_reason}" if job.wait_reason else ""
            until = f"; cancelled if it has not started by {local_time(job.wait_until, now)}" if job.wait_until else ""
            return f"{place}{start_estimate(job, now)}{why}{until}"
        case Status.PREPARING:
            return job.step or "being prepared"
        case Status.ACTIVE:
            return time_remaining(job, now)
        case Status.FAILED:
            return job.failure_reason or "failed"
        case _:
            ended = job.reservation_ended or job.cancelled_at or job.expires_at
            return f"ended {local_time(ended, now)}" if ended else ""


def describe_end(job: JobView) -> str:
    """How and why the reservation ended."""
    name = f"reservation {short_id(job.reservation_id)}"
    if job.exit_code is not None and job.status != Status.FAILED:
        return f"{name} ended with its command (exit code {job.exit_code})"
    match job.status:
        case Status.FAILED:
            return f"{name} failed: {job.failure_reason or 'unknown reason'}"
        case Status.CANCELLED:
            why = f" ({job.failure_reason})" if job.failure_reason else ""
            return f"{name} was cancelled{why}"
        case _:
            return f"{name} has {job.status}"
