"""Counters, gauges and histograms of one process. They start at zero with it, as Prometheus expects."""

from prometheus_client import Counter, Gauge, Histogram

_REQUEST_SECONDS = (0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_CYCLE_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_EFFECT_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_WAIT_SECONDS = (1, 10, 60, 300, 900, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 24 * 3600, 72 * 3600)
_STARTUP_SECONDS = (0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800)
_ERROR_SECONDS = (10, 60, 300, 600, 900, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 24 * 3600)
_DISK_SECONDS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 1800, 3600, 4 * 3600)

# --- API -------------------------------------------------------------------------------------------------------------

requests = Counter("gpudev_http_requests", "Requests answered", ["method", "route", "status"])
request_seconds = Histogram(
    "gpudev_http_request_duration_seconds",
    "Time until the response began",
    ["method", "route"],
    buckets=_REQUEST_SECONDS,
)
requests_in_progress = Gauge("gpudev_http_requests_in_progress", "Requests being answered, streams included")

# --- proxy -----------------------------------------------------------------------------------------------------------

proxy_sessions = Gauge("gpudev_proxy_sessions", "ssh sessions open through this process")
proxy_opened = Counter("gpudev_proxy_sessions_opened", "ssh sessions requested, by result", ["result"])
proxy_bytes = Counter("gpudev_proxy_bytes", "Bytes carried by sessions that have ended", ["direction"])

# --- planning loop ---------------------------------------------------------------------------------------------------

cycles = Counter("gpudev_planner_cycles", "Cycles of the planning loop, by result", ["result"])
cycle_seconds = Histogram("gpudev_planner_cycle_seconds", "One cycle: load, decide, write", buckets=_CYCLE_SECONDS)
decide_seconds = Histogram(
    "gpudev_planner_decide_seconds", "Planning all queues, without reading and writing", buckets=_CYCLE_SECONDS
)
is_leader = Gauge("gpudev_planner_leader", "Whether this processor holds the planning lease")
observations_failed = Counter("gpudev_cluster_observations_failed", "Observations that the cluster did not answer")
orphans = Gauge("gpudev_orphan_servers", "Dev servers of no reservation that wait to be removed")
dead_lettered = Counter("gpudev_messages_dead_lettered", "Messages that this processor made dead letters", ["queue"])
broken_plans = Counter("gpudev_planner_broken_plans", "Cycles in which a GPU type could not be planned", ["gpu_type"])

notifications = Counter("gpudev_notifications", "Attempts to send a notification, by result", ["result"])

effects = Counter("gpudev_effects", "Effects (launch, teardown, …), by result", ["kind", "result"])
effect_seconds = Histogram("gpudev_effect_seconds", "One attempt at an effect", ["kind"], buckets=_EFFECT_SECONDS)

# --- reconcilers -----------------------------------------------------------------------------------------------------

reconcile_passes = Counter("gpudev_reconcile_passes", "Passes of a reconciler, by result", ["reconcile", "result"])
reconcile_seconds = Histogram("gpudev_reconcile_seconds", "One pass", ["reconcile"], buckets=_EFFECT_SECONDS)
reconciled_at = Gauge("gpudev_reconcile_last_success_timestamp_seconds", "When a pass last succeeded", ["reconcile"])
disk_drift = Gauge("gpudev_reconcile_disks", "What the last disk pass found, by its statistics", ["found"])

# --- events from the database, whichever process wrote them ----------------------------------------------------------

transitions = Counter(
    "gpudev_reservation_transitions", "Reservations that entered a status or were released", ["gpu_type", "to"]
)
wait_seconds = Histogram(
    "gpudev_reservation_wait_seconds", "From submission to placement", ["gpu_type"], buckets=_WAIT_SECONDS
)
startup_seconds = Histogram(
    "gpudev_reservation_startup_seconds",
    "From placement until the dev server was ready",
    ["gpu_type"],
    buckets=_STARTUP_SECONDS,
)
expected_start_error_seconds = Histogram(
    "gpudev_expected_start_error_seconds",
    "Absolute difference between the first expected start and the start",
    ["gpu_type"],
    buckets=_ERROR_SECONDS,
)
guarantees_broken = Counter("gpudev_guaranteed_starts_broken", "Starts later than the guaranteed start", ["gpu_type"])
disk_operations = Counter("gpudev_disk_operations", "Disk operations that have ended", ["kind", "result"])
disk_operation_seconds = Histogram(
    "gpudev_disk_operation_seconds",
    "A disk operation, from the request to its end",
    ["kind"],
    buckets=_DISK_SECONDS,
)
disk_corrections = Counter(
    "gpudev_reconcile_disk_corrections", "Disk records that a pass corrected or imported", ["kind"]
)
