"""Where disks are kept, by the settings."""

from datetime import timedelta

import pytest

from gpudev.bootstrap.cluster import open_cloud
from gpudev.settings import LOCAL_ZONE, given_variables, load_settings


@pytest.mark.parametrize(
    ("environ", "cloud", "manages", "has"),
    [
        ({}, "local", True, True),
        ({"GPU_DEV_CLOUD": "none"}, "none", False, True),
        ({"GPU_DEV_CLOUD": "aws"}, "aws", False, True),
        ({"GPU_DEV_CLUSTER": "kubernetes"}, "none", False, False),
        ({"GPU_DEV_CLUSTER": "kubernetes", "GPU_DEV_CLOUD": "local"}, "local", False, False),
        ({"GPU_DEV_CLUSTER": "kubernetes", "GPU_DEV_CLOUD": "gcp"}, "gcp", True, True),
    ],
)
def test_volumes_are_managed_where_dev_servers_can_use_them(
    environ: dict[str, str], cloud: str, manages: bool, has: bool
) -> None:
    settings = load_settings(environ)
    assert (settings.cloud, settings.manages_volumes, settings.has_disks) == (cloud, manages, has)


def test_one_machine_has_one_zone_and_looks_often() -> None:
    assert (load_settings({}).disks.zone, load_settings({}).disks.poll_every) == (
        LOCAL_ZONE,
        timedelta(milliseconds=200),
    )
    remote = load_settings({"GPU_DEV_CLUSTER": "kubernetes", "GPU_DEV_CLOUD": "aws"})
    assert (remote.disks.zone, remote.disks.poll_every) == ("", timedelta(seconds=2))
    assert remote.timing.teardown_margin > load_settings({}).timing.teardown_margin


def test_what_is_said_counts_and_travels_to_the_next_start() -> None:
    said = {"GPU_DEV_DISK_KEEP_LAST": "9", "GPU_DEV_DISK_ZONE": "attic", "GPU_DEV_DISK_RETENTION": "60"}
    disks = load_settings(said).disks
    assert (disks.keep_last, disks.zone, disks.retention) == (9, "attic", timedelta(minutes=1))
    assert given_variables(said) == said


def test_a_cloud_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="GPU_DEV_CLOUD"):
        load_settings({"GPU_DEV_CLOUD": "azure"})


async def test_the_passes_that_compare_with_a_cloud_leave_this_machines_folders_alone() -> None:
    async with open_cloud(load_settings({})) as cloud:
        assert cloud is None
