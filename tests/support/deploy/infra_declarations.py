"""What infra/declared.json must say: it is derived from the code, and nobody writes it by hand."""

import tomllib
from pathlib import Path

from gpudev.adapters.aws import permissions as aws
from gpudev.adapters.gcp import permissions as gcp
from gpudev.ports.cloud import ENVIRONMENT_TAG, OWNER_TAG

ROOT = Path(__file__).resolve().parents[3]
DECLARED = ROOT / "infra" / "declared.json"
CATALOGUE = ROOT / "src" / "gpudev" / "domain" / "catalogue.toml"

# The processor does continuously what the availability updater does now and then (bootstrap/reconcilers.py), and
# reservation-expiry puts disks away as the processor would (bootstrap/processor.py, open_backstop). Operators' commands
# run in the toolbox: report orphans, nodes groups, nodes refresh.
AWS_SERVICES = {
    "reservation-processor": aws.RECONCILE_AVAILABILITY | aws.RECONCILE_DISKS | aws.DISK_OPERATIONS,
    "availability-updater": aws.RECONCILE_AVAILABILITY | aws.RECONCILE_DISKS,
    "reservation-expiry": aws.DISK_OPERATIONS,
    "toolbox": aws.RECONCILE_DISKS | aws.NODE_OPERATIONS,
}
GCP_SERVICES = {
    "reservation-processor": gcp.RECONCILE_AVAILABILITY | gcp.RECONCILE_DISKS | gcp.DISK_OPERATIONS,
    "availability-updater": gcp.RECONCILE_AVAILABILITY | gcp.RECONCILE_DISKS,
    "reservation-expiry": gcp.DISK_OPERATIONS,
    "toolbox": gcp.RECONCILE_AVAILABILITY | gcp.RECONCILE_DISKS,
}


def declarations() -> dict[str, object]:
    catalogue = tomllib.loads(CATALOGUE.read_text())
    return {
        "about": "Written by tools/infra-declarations. Do not edit.",
        "owner_tag": OWNER_TAG,
        "environment_tag": ENVIRONMENT_TAG,
        "aws": {"services": {name: sorted(actions) for name, actions in AWS_SERVICES.items()}},
        "gcp": {"services": {name: sorted(permissions) for name, permissions in GCP_SERVICES.items()}},
        "gpu_types": {
            name: {"instance_type": about["instance_type"], "gpus": about["max_gpus"]}
            for name, about in catalogue.items()
            if about["max_gpus"] > 0
        },
    }
