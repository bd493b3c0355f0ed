"""The cluster, one's key and the statistics, as programs use them."""

from collections.abc import Sequence

from gpudev.sdk.effects import Do, Routine
from gpudev.sdk.http.endpoints import Call, reading
from gpudev.sdk.offering import Awaiting, Blocking, Group, offered
from gpudev.wire.cluster import AvailabilityList, ClusterPlan, ClusterStatus, GpuAvailability, Health, KeyView
from gpudev.wire.queue import EtaReportView


class ClusterMethods(Group):
    """`client.cluster`."""

    @offered
    def availability(self) -> Routine[Sequence[GpuAvailability]]:
        """Per GPU type: what is free, who waits, and how long one GPU would take."""
        return (yield from self._core.value(reading(AvailabilityList, "/v1/gpu/availability"))).gpu_types

    @offered
    def status(self) -> Routine[ClusterStatus]:
        """Nodes and reservations in numbers; whether a processor is alive."""
        return self._core.value(reading(ClusterStatus, "/v1/cluster/status"))

    @offered
    def plan(self, *, hours: float = 12.0, gpu_type: str | None = None) -> Routine[ClusterPlan]:
        """The coming hours of every node, and when those who wait start."""
        query = {"hours": f"{hours:g}"} | ({"gpu_type": gpu_type} if gpu_type else {})
        return self._core.value(reading(ClusterPlan, "/v1/cluster/plan", query))

    @offered
    def health(self) -> Routine[Health]:
        """Whether the API and what it needs are well."""
        return self._core.value(reading(Health, "/health"))


class Cluster(ClusterMethods, Blocking):
    pass


class AsyncCluster(ClusterMethods, Awaiting):
    pass


class KeyMethods(Group):
    """`client.keys`: the key this client asks with."""

    @offered
    def rotate(self) -> Routine[KeyView]:
        """A new key, which this client uses from now on; the one that asked is none any more. Where that one was
        stored by `gpu-dev login`, the new one takes its place; a key that was given some other way is yours to keep."""
        view = yield from self._core.value(Call(KeyView, "POST", "/v1/keys/rotate"))
        before = self._core.use_key(view.api_key)
        ends = view.expires_at.isoformat() if view.expires_at else None
        yield Do(lambda: self._session.keep_rotated(before, view.api_key, ends))
        return view

    @offered
    def revoke(self) -> Routine[None]:
        """The key is none any more."""
        return self._core.revoke_key()


class Keys(KeyMethods, Blocking):
    pass


class AsyncKeys(KeyMethods, Awaiting):
    pass


class StatisticsMethods(Group):
    """`client.stats`."""

    @offered
    def eta(self, *, days: float | None = None, gpu_type: str | None = None) -> Routine[EtaReportView]:
        """How good the estimates of starts were."""
        query = ({"days": f"{days:g}"} if days is not None else {}) | ({"gpu_type": gpu_type} if gpu_type else {})
        return self._core.value(reading(EtaReportView, "/v1/stats/eta", query))


class Statistics(StatisticsMethods, Blocking):
    pass


class AsyncStatistics(StatisticsMethods, Awaiting):
    pass
