"""The cluster, API keys and statistics."""

from collections.abc import Sequence

from gpudev.sdk.http import access_endpoints, cluster_endpoints
from gpudev.sdk.http.routines import Routine, RunFunction
from gpudev.sdk.resources.sync_async import AsyncResource, Resource, SyncResource, api_method
from gpudev.wire.access import KeyView
from gpudev.wire.cluster import ClusterStatus, GpuAvailability, Health
from gpudev.wire.queue import ClusterPlan, EtaReportView


class ClusterMethods(Resource):
    """`client.cluster`."""

    @api_method
    def availability(self) -> Routine[Sequence[GpuAvailability]]:
        """Per GPU type: free GPUs, queue length, and the wait for one GPU."""
        return (yield from self._client.fetch_value(cluster_endpoints.list_availability())).gpu_types

    @api_method
    def status(self) -> Routine[ClusterStatus]:
        """Numbers of nodes and reservations, and whether a processor is alive."""
        return self._client.fetch_value(cluster_endpoints.get_cluster_status())

    @api_method
    def plan(self, *, hours: float = 12.0, gpu_type: str | None = None) -> Routine[ClusterPlan]:
        """The plan of every node for the next hours, and the planned starts."""
        return self._client.fetch_value(cluster_endpoints.get_plan(hours, gpu_type))

    @api_method
    def health(self) -> Routine[Health]:
        """Health of the API and its dependencies."""
        return self._client.fetch_value(cluster_endpoints.get_health())


class Cluster(ClusterMethods, SyncResource):
    pass


class AsyncCluster(ClusterMethods, AsyncResource):
    pass


class KeyMethods(Resource):
    """`client.keys`: the key of this client."""

    @api_method
    def rotate(self) -> Routine[KeyView]:
        """Replace the key; the old one is revoked, and this client uses the new one. It replaces a key stored by
        `gpu-dev login`; if the old key came from elsewhere, store the new one yourself."""
        view = yield from self._client.fetch_value(access_endpoints.rotate_key())
        before = self._client.use_key(view.api_key)
        expires_at = view.expires_at.isoformat() if view.expires_at else None
        yield RunFunction(lambda: self._session.replace_stored_key(before, view.api_key, expires_at))
        return view

    @api_method
    def revoke(self) -> Routine[None]:
        """Revoke the key."""
        return self._client.revoke_key()


class Keys(KeyMethods, SyncResource):
    pass


class AsyncKeys(KeyMethods, AsyncResource):
    pass


class StatisticsMethods(Resource):
    """`client.stats`."""

    @api_method
    def eta(self, *, days: float | None = None, gpu_type: str | None = None) -> Routine[EtaReportView]:
        """Accuracy of the start estimates."""
        return self._client.fetch_value(cluster_endpoints.get_eta_report(days, gpu_type))


class Statistics(StatisticsMethods, SyncResource):
    pass


class AsyncStatistics(StatisticsMethods, AsyncResource):
    pass
