"""Wire models from and to JSON without a validation library."""

import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.wire import codec
from gpudev.wire.access import KeyView
from gpudev.wire.cluster import AvailabilityList, ClusterStatus, GpuAvailability, Health, NodeView, Problem
from gpudev.wire.queue import ClusterPlan, TypePlan
from gpudev.wire.reservations import (
    ExtendRequest,
    JobEvent,
    JobList,
    JobView,
    NodeShareView,
    PriorityRequest,
    SubmitRequest,
)
from support.client.estimates import make_eta, make_node, make_start
from support.client.fake_api import make_job, make_type

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
SAMPLES: list[Any] = [
    make_job(status="queued", eta=make_eta(NOW, 40, 20, 90, 125)),
    ClusterPlan(
        begins=NOW,
        until=NOW,
        gpu_types=[
            TypePlan(
                gpu_type="t4",
                nodes=[make_node("n", 8, NOW, (0, 8), (2.5, 0))],
                waiting=[make_start(1, latest=NOW, nodes=["n"])],
                waiting_in_all=3,
            )
        ],
    ),
    make_job(status="active", nodes=[NodeShareView(rank=0, node="n1", gpu_count=2, gpu_indices=[0, 3])], name="日本"),
    JobList(jobs=[make_job(), make_job()], next_cursor="abc"),
    JobEvent(event_id=1, at=NOW, kind="queued", status="queued", version=2, message="waits"),
    SubmitRequest(gpu_count=2, ssh_public_keys=["ssh-ed25519 AAAA"]),
    ExtendRequest(extension_hours=1.5),
    PriorityRequest(priority=-5),
    AvailabilityList(gpu_types=[make_type("a100")]),
    ClusterStatus(
        nodes=[
            NodeView(
                name="n",
                gpu_type="t4",
                ready=True,
                schedulable=False,
                simulated=True,
                total_gpus=4,
                used_gpus=1,
                available_gpus=3,
            )
        ],
        total_gpus=4,
        available_gpus=3,
        active_reservations=1,
        preparing_reservations=0,
        queued_reservations=0,
        processor="alive",
        seen_at=None,
    ),
    KeyView(api_key="gpudev_x", expires_at=NOW, username="ada"),
    Health(status="ok", version="1", checks={"database": "ok"}),
    Problem(type="t", title="T", status=404, detail="no", code="not_found"),
]


@pytest.mark.parametrize("value", SAMPLES, ids=lambda value: type(value).__name__)
def test_every_wire_model_survives_the_way_over_json(value: Any) -> None:
    text = json.dumps(codec.encode_model(value))
    assert codec.decode_model(type(value), json.loads(text)) == value


@given(
    st.builds(
        make_job,
        name=st.none() | st.text(),
        duration_hours=st.floats(allow_nan=False, allow_infinity=False),
        gpu_count=st.integers(0, 64),
        created_at=st.datetimes(timezones=st.just(UTC)),
        expires_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    )
)
def test_any_job_is_read_back_as_it_was_written(job: JobView) -> None:
    assert codec.decode_model(JobView, json.loads(json.dumps(codec.encode_model(job)))) == job


def test_what_a_newer_server_adds_is_passed_over() -> None:
    data = {**codec.encode_model(make_job(name="x")), "invented_later": {"a": 1}}
    assert codec.decode_model(JobView, data).name == "x"


def test_what_an_older_server_does_not_say_yet_is_null() -> None:
    data = codec.encode_model(make_job(warning="soon"))
    del data["warning"]
    assert codec.decode_model(JobView, data).warning is None


@pytest.mark.parametrize("name", ["eta", "priority"])
def test_a_job_of_the_version_before_estimates_and_priorities_can_be_read(name: str) -> None:
    data = codec.encode_model(make_job(status="queued"))
    del data[name]
    assert not getattr(codec.decode_model(JobView, data), name)


def test_a_field_that_must_be_there_is_named_when_it_is_not() -> None:
    data = codec.encode_model(make_job())
    del data["status"]
    with pytest.raises(codec.MalformedData, match="status is missing"):
        codec.decode_model(JobView, data)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("status", 3, "status should be str, not int"),
        ("status", None, "status should be str, not null"),
        ("version", "1", "version should be int, not str"),
        ("version", True, "version should be int, not bool"),
        ("duration_hours", "4", "duration_hours should be a number, not str"),
        ("duration_hours", True, "duration_hours should be a number, not bool"),
        ("created_at", 17, "created_at should be a time, not int"),
        ("created_at", "yesterday", "created_at should be a time, not 'yesterday'"),
        ("created_at", "2026-03-02T09:00:00", "created_at should say its time zone"),
        ("nodes", {}, "nodes should be a list, not dict"),
        ("nodes", [1], r"nodes\[0\] should be an object, not int"),
        ("nodes", [{"rank": 0, "node": "n", "gpu_count": 1, "gpu_indices": ["0"]}], r"nodes\[0\].gpu_indices\[0\]"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_the_name_of_its_field(field: str, value: Any, complaint: str) -> None:
    data = {**codec.encode_model(make_job()), field: value}
    with pytest.raises(codec.MalformedData, match=complaint):
        codec.decode_model(JobView, data)


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_what_is_no_object_is_no_model(data: Any) -> None:
    with pytest.raises(codec.MalformedData, match="JobView should be an object"):
        codec.decode_model(JobView, data)


def test_a_whole_number_is_as_good_as_a_fraction() -> None:
    assert codec.decode_model(ExtendRequest, {"extension_hours": 2}).extension_hours == 2.0


def test_times_of_any_zone_are_understood() -> None:
    data = {**codec.encode_model(make_job()), "created_at": "2026-03-02T10:00:00+01:00"}
    created = codec.decode_model(JobView, data).created_at
    assert created == NOW
    assert created.utcoffset() == timedelta(hours=1)


def test_times_in_utc_are_written_the_way_the_api_writes_them() -> None:
    assert codec.encode_model(NOW) == "2026-03-02T09:00:00Z"
    assert codec.encode_model(NOW.astimezone(timezone(timedelta(hours=1)))) == "2026-03-02T10:00:00+01:00"


def test_what_was_not_asked_for_is_left_out_of_a_request() -> None:
    assert codec.encode_model(SubmitRequest(gpu_count=2), without_none=True) == {"gpu_count": 2}


def test_every_field_of_every_wire_model_can_be_read() -> None:
    """A field of a kind the codec does not know would be noticed here, not by a user."""
    for value in SAMPLES:
        assert {field.name for field in fields(value)} == set(codec.encode_model(value))


def test_a_list_that_an_earlier_server_does_not_know_is_empty() -> None:
    data = codec.encode_model(make_type("a100"))
    del data["closed_nodes"]
    first, second = (codec.decode_model(GpuAvailability, data) for _ in range(2))
    assert first.closed_nodes == []
    assert first.closed_nodes is not second.closed_nodes
