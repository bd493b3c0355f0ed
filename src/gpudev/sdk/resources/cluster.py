"""The cluster, API keys and statistics, for programs."""

from collections.abc import Sequence

from gpudev.sdk.http import access_endpoints, cluster_endpoints, queue_endpoints
from gpudev.sdk.http.routines import Routine, RunFunction
from gpudev.sdk.resources.sync_async import AsyncResource, Resource, SyncResource, api_method
from gpudev.wire.access import KeyView
from gpudev.wire.cluster import ClusterStatus, GpuAvailability, Health
from gpudev.wire.queue import ClusterPlan, EtaReportView


class ClusterMethods(Resource):
    """`client.cluster`."""

    @api_method
    def availability(self) -> Routine[Sequence[GpuAvailability]]:
        """Per GPU type: what is free, who waits, and how long one GPU would take."""
        return (yield from self._client.fetch_value(cluster_endpoints.list_availability())).gpu_types

    @api_method
    def status(self) -> Routine[ClusterStatus]:
        """Nodes and reservations in numbers; whether a processor is alive."""
        return self._client.fetch_value(cluster_endpoints.get_cluster_status())

    @api_method
    def plan(self, *, hours: float = 12.0, gpu_type: str | None = None) -> Routine[ClusterPlan]:
        """The coming hours of every node, and when those who wait start."""
        return self._client.fetch_value(queue_endpoints.get_plan(hours, gpu_type))

    @api_method
    def health(self) -> Routine[Health]:
        """Whether the API and what it needs are well."""
        return self._client.fetch_value(cluster_endpoints.get_health())


class Cluster(ClusterMethods, SyncResource):
    pass


class AsyncCluster(ClusterMethods, AsyncResource):
    pass


class KeyMethods(Resource):
    """`client.keys`: the key this client asks with."""

    @api_method
    def rotate(self) -> Routine[KeyView]:
        """A new key, which this client uses from now on; the one that asked is none any more. Where that one was
        stored by `gpu-dev login`, the new one takes its place; a key that was given some other way is yours to keep."""
        view = yield from self._client.fetch_value(access_endpoints.rotate_key())
        before = self._client.use_key(view.api_key)
        ends = view.expires_at.isoformat() if view.expires_at else None
        yield RunFunction(lambda: self._session.replace_stored_key(before, view.api_key, ends))
        return view

    @api_method
    def revoke(self) -> Routine[None]:
        """The key is none any more."""
        return self._client.revoke_key()


class Keys(KeyMethods, SyncResource):
    pass


class AsyncKeys(KeyMethods, AsyncResource):
    pass


class StatisticsMethods(Resource):
    """`client.stats`."""

    @api_method
    def eta(self, *, days: float | None = None, gpu_type: str | None = None) -> Routine[EtaReportView]:
        """How good the estimates of starts were."""
        return self._client.fetch_value(queue_endpoints.get_eta_report(days, gpu_type))


class Statistics(StatisticsMethods, SyncResource):
    pass


class AsyncStatistics(StatisticsMethods, AsyncResource):
    pass
