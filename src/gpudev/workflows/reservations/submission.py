"""Submit: check everything, write the row with its message, answer with the estimate.

Whether a request can ever run is decided in `planning.reservations.admission`.
"""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from gpudev.domain.access.ssh_keys import check_github_user, parse_public_keys
from gpudev.domain.access.users import User
from gpudev.domain.cluster import Catalogue, Node, ZoneConstraint
from gpudev.domain.disks.names import NO_DISK, check_disk_name
from gpudev.domain.disks.operations import DiskSettings
from gpudev.domain.errors import IdTaken, ImageUnsupported, Invalid, LimitReached
from gpudev.domain.ids import new_reservation_id
from gpudev.domain.queue import QueuePlan
from gpudev.domain.reservations.lifecycle import LIVE
from gpudev.domain.reservations.personalization import Personalization, check_personalization
from gpudev.domain.reservations.reservation import Reservation, ReservationDraft
from gpudev.planning.queue.queue_input import to_request
from gpudev.planning.queue.start_quotes import LONG_QUEUE_AHEAD, estimate_in_long_queue, estimate_position
from gpudev.planning.queue.zone_constraints import constrain_to_disks
from gpudev.planning.reservations.admission import AdmissionRequest, Admitted, NotAdmitted, UserUsage, admit_request
from gpudev.ports.access import PublicKeySource
from gpudev.ports.clock import Clock
from gpudev.ports.disks import DiskLocations
from gpudev.ports.queue import PlanStore
from gpudev.ports.reservations import JobQuery, ReservationStore, UnreleasedView, UserLimits
from gpudev.settings import LimitSettings, TimingSettings
from gpudev.wire.reservations import SubmitRequest
from gpudev.workflows.guarded import retry_on

_MOST_LIVE_COUNTED = 10_000
_LONGEST_WAIT_HOURS = 24 * 365
_IMAGE = re.compile(r"(?!.*//)[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")  # a reference, never a URL


@dataclass(frozen=True, slots=True)
class Submitted:
    reservation: Reservation
    replayed: bool
    """True: the answer to an earlier request with this Idempotency-Key; nothing was written."""


@dataclass(frozen=True, slots=True)
class Submission:
    reservations: ReservationStore
    unreleased: UnreleasedView
    nodes: Callable[[], Awaitable[tuple[list[Node], datetime | None]]]
    catalogue: Callable[[], Awaitable[Catalogue]]
    keys: PublicKeySource
    clock: Clock
    limits: LimitSettings
    plans: PlanStore
    timing: TimingSettings
    fixed_cluster: bool
    """True: no nodes are ever added (one machine)."""
    disk_limits: DiskSettings
    disk_locations: DiskLocations
    has_disks: bool = True
    """False: every home is scratch space here, and a request that names a disk is rejected."""
    has_images: bool = True
    """False: dev servers are not containers (one machine), and a request that names an image is rejected."""

    async def submit(self, user: User, request: SubmitRequest, idempotency_key: str | None) -> Submitted:
        fingerprint = _fingerprint(request)
        if idempotency_key is not None:
            # First: a repeated request gets its answer even if it would be rejected by now.
            earlier = await self.reservations.find_submission(user.user_id, idempotency_key, fingerprint)
            if earlier is not None:
                return Submitted(await self._with_estimate(earlier, (await self.nodes())[0]), replayed=True)
        _check_names(request)
        self._check_image(request)
        setup = check_personalization(
            Personalization(request.environment or {}, request.dotfiles, request.startup_script)
        )
        disk_name = self._disk_name(request)
        nodes, seen_at = await self.nodes()
        # Until a processor has observed the cluster, an empty list of nodes means nothing.
        admitted = await self._admit(user, request, nodes, fixed_cluster=self.fixed_cluster and seen_at is not None)
        keys = await self._login_keys(request)
        draft = ReservationDraft(
            reservation_id=new_reservation_id(),
            user_id=user.user_id,
            username=user.username,
            gpu_type=admitted.gpu_type,
            gpu_count=admitted.gpu_count,
            node_count=admitted.node_count,
            duration=admitted.duration,
            ssh_public_keys=keys,
            github_user=request.github_user,
            name=request.name,
            image=request.image,
            command=request.command,
            disk_name=disk_name,
            scratch_reason=None if self.has_disks or request.disk_name == NO_DISK else "this cluster has no disks",
            max_wait=_max_wait(request),
            personalization=setup,
        )
        written = await self._write(draft, idempotency_key, fingerprint)
        return replace(written, reservation=await self._with_estimate(written.reservation, nodes))

    def _check_image(self, request: SubmitRequest) -> None:
        if request.image is not None and not self.has_images:
            raise ImageUnsupported(
                "dev servers on this machine run without containers, so they cannot use an image; leave it out",
                field="image",
            )

    def _disk_name(self, request: SubmitRequest) -> str | None:
        if self.has_disks or request.disk_name == NO_DISK:
            return request.disk_name
        if request.disk_name is not None:
            raise Invalid(
                "this cluster has no disks: /home/dev is scratch space; leave the disk out, or ask for 'none'",
                field="disk_name",
            )
        return NO_DISK

    async def _admit(
        self, user: User, request: SubmitRequest, nodes: Sequence[Node], *, fixed_cluster: bool
    ) -> Admitted:
        decision = admit_request(
            AdmissionRequest(request.gpu_type, request.gpu_count, request.duration_hours),
            await self.catalogue(),
            nodes,
            self.limits,
            await self._usage(user),
            fixed_cluster=fixed_cluster,
        )
        match decision:
            case Admitted():
                return decision
            case NotAdmitted(_, reason, True):
                raise LimitReached(reason)
            case NotAdmitted(field, reason, _):
                raise Invalid(reason, field=field)
            case _:
                assert_never(decision)

    async def _usage(self, user: User) -> UserUsage:
        if self.limits.max_queued_per_user is None and self.limits.max_gpus_per_user is None:
            return UserUsage()
        live = await self.reservations.list_jobs(JobQuery(user.user_id, tuple(LIVE), limit=_MOST_LIVE_COUNTED))
        return UserUsage(
            queued=sum(1 for each in live if each.status.is_waiting), gpus=sum(each.gpu_count for each in live)
        )

    async def _login_keys(self, request: SubmitRequest) -> tuple[str, ...]:
        if request.ssh_public_keys:
            return parse_public_keys(request.ssh_public_keys)
        if request.github_user is not None:
            return tuple(await self.keys.public_keys(request.github_user))
        raise Invalid(
            "nobody could log in: give github_user (whose published keys are used) or ssh_public_keys",
            field="ssh_public_keys",
        )

    @retry_on(IdTaken)
    async def _write(self, draft: ReservationDraft, idempotency_key: str | None, fingerprint: str) -> Submitted:
        """Draws another id if an unreleased reservation has the same short id."""
        draft = replace(draft, reservation_id=new_reservation_id())
        limits = UserLimits(self.limits.max_queued_per_user, self.limits.max_gpus_per_user, self.disk_limits)
        written = await self.reservations.submit(
            draft, idempotency_key=idempotency_key, fingerprint=fingerprint, now=self.clock.now(), limits=limits
        )
        return Submitted(written, replayed=written.reservation_id != draft.reservation_id)

    async def _with_estimate(self, reservation: Reservation, nodes: Sequence[Node]) -> Reservation:
        """With the planner's current estimate, until a processor has written one. A processor may be faster than this:
        then the reservation is returned as it is by now, since its own allocation must not count against it."""
        if _is_examined(reservation):
            return reservation
        plan = (await self.plans.refresh()).get(reservation.gpu_type)
        newcomer = to_request(
            reservation, self.timing, zone_constraint=await self._find_zone_constraint(reservation, plan)
        )
        now = self.clock.now()
        ahead = await self.reservations.count_ahead(
            reservation, plan.planned_seq if plan else 0, self.timing.reservation_overhead
        )
        if ahead.count > LONG_QUEUE_AHEAD:
            estimate = estimate_in_long_queue(newcomer, ahead, plan, now)
        else:
            same_type = [each for each in await self.unreleased.refresh() if each.gpu_type == reservation.gpu_type]
            current = next((each for each in same_type if each.reservation_id == reservation.reservation_id), None)
            if current is None or _is_examined(current):
                return current or await self._read_again(reservation)
            estimate = estimate_position(newcomer, nodes, same_type, plan, now=now, timing=self.timing)
        return replace(reservation, estimate=estimate, last_queue_update=now)

    async def _read_again(self, reservation: Reservation) -> Reservation:
        """It is released already."""
        return await self.reservations.find_reservation(reservation.reservation_id) or reservation

    async def _find_zone_constraint(self, reservation: Reservation, plan: QueuePlan | None) -> ZoneConstraint | None:
        if reservation.disk_id is None or plan is None or not plan.zones:
            return None
        places = await self.disk_locations.find_locations([reservation.disk_id])
        return constrain_to_disks([reservation], places, self.disk_limits.move_takes).get(reservation.reservation_id)


def _is_examined(reservation: Reservation) -> bool:
    """Whether a processor has decided on it."""
    return not reservation.status.is_waiting or reservation.estimate is not None


def _check_names(request: SubmitRequest) -> None:
    if request.name is not None and (not request.name.strip() or not request.name.isprintable()):
        raise Invalid("name must be printable text, or be left out", field="name")
    if request.image is not None and not _IMAGE.fullmatch(request.image):
        raise Invalid(f"invalid image {request.image[:80]!r} (expected a container image reference)", field="image")
    if request.command is not None and not request.command.strip():
        raise Invalid("command must be text, or be left out", field="command")
    if request.disk_name is not None:
        check_disk_name(request.disk_name)
    if request.github_user is not None:
        check_github_user(request.github_user)


def _max_wait(request: SubmitRequest) -> timedelta | None:
    hours = request.max_wait_hours
    if hours is None:
        return None
    if not 0 < hours <= _LONGEST_WAIT_HOURS:
        raise Invalid(f"max_wait_hours must be more than 0 and at most {_LONGEST_WAIT_HOURS}", field="max_wait_hours")
    return timedelta(hours=hours)


def _fingerprint(request: SubmitRequest) -> str:
    """Distinguishes requests under the same key. It is kept longer than the reservation, so it does not include values
    of variables: even a hash would reveal a short secret."""
    fields = {**asdict(request), "environment": sorted(request.environment or {})}
    text = json.dumps(fields, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
