"""Estimate statistics on the wire."""

from dataclasses import dataclass
from datetime import timedelta

from gpudev.domain.queue import CONFIDENCE
from gpudev.planning.queue.eta_report import EtaReport, make_eta_reports
from gpudev.ports.clock import Clock
from gpudev.ports.queue import EstimateStore
from gpudev.wire.queue import EtaBreach, EtaErrors, EtaReportView, EtaStatistics


@dataclass(frozen=True, slots=True)
class EtaReports:
    estimates: EstimateStore
    clock: Clock

    async def report_eta(self, days: float, gpu_type: str | None = None, *, name_breaches: bool) -> EtaReportView:
        now = self.clock.now()
        since = now - timedelta(days=days)
        parts = make_eta_reports(await self.estimates.outcomes_since(since), now)
        if gpu_type is not None:
            parts = [part for part in parts if part.gpu_type == gpu_type]
        breaches = (parts[0].breaches if parts else ()) if name_breaches else ()
        return EtaReportView(
            since=since,
            statistics=[_statistics(part) for part in parts],
            breaches=[
                EtaBreach(
                    reservation_id=str(breach.reservation_id),
                    gpu_type=breach.gpu_type,
                    latest=breach.latest,
                    started_at=breach.started_at,
                    cause=breach.cause.value,
                )
                for breach in breaches
            ],
        )


def _statistics(part: EtaReport) -> EtaStatistics:
    return EtaStatistics(
        gpu_type=part.gpu_type,
        started=part.started,
        expected_error=EtaErrors(median_minutes=part.expected.median, p90_minutes=part.expected.p90),
        latest_error=EtaErrors(median_minutes=part.latest.median, p90_minutes=part.latest.p90),
        in_interval=None if part.in_interval is None else round(part.in_interval, 4),
        confidence=CONFIDENCE,
        latest_broken=len(part.breaches),
        latest_broken_by_cause=part.breaches_by_cause(),
    )
