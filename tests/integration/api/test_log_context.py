"""From what somebody was told to what the processor did: the ids that lead there."""

import httpx2
import structlog
from structlog.testing import capture_logs

from gpudev.domain.errors import Unavailable
from support.api.harness import Api, submit


async def test_the_line_of_a_submit_has_the_ids_of_its_request_and_of_its_reservation(
    api: Api, ada: httpx2.AsyncClient
) -> None:
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        ada.headers["X-Request-ID"] = "from-ada-1"
        job = (await submit(ada))["job_id"]
    (line,) = [line for line in lines if line["event"] == "http.request"]
    assert (line["request_id"], line["reservation_id"]) == ("from-ada-1", job)


async def test_whatever_the_processor_does_for_a_reservation_has_the_id_of_the_request_that_made_it(
    api: Api, ada: httpx2.AsyncClient
) -> None:
    ada.headers["X-Request-ID"] = "from-ada-1"
    job = (await submit(ada))["job_id"]
    ada.headers["X-Request-ID"] = "from-ada-9"
    await submit(ada)
    api.world.cluster.refuse_launch = Unavailable("the cluster is away")
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        await api.world.turn(1)
    ours = [line for line in lines if line.get("reservation_id") == job]
    assert {line["event"] for line in ours} == {"message.taken", "reservation.preparing", "effect.failed"}
    assert {line.get("request_id") for line in ours} == {"from-ada-1"}
    assert "request_id" not in structlog.contextvars.get_contextvars()


async def test_a_cancels_request_id_goes_with_its_message_to_the_processor(api: Api, ada: httpx2.AsyncClient) -> None:
    job = (await submit(ada))["job_id"]
    await api.world.turn()
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        await ada.post(f"/v1/jobs/{job}/cancel", headers={"X-Request-ID": "from-ada-2"})
        await api.world.turn(1)
    (taken,) = [line for line in lines if line["event"] == "message.taken"]
    assert (taken["reservation_id"], taken["request_id"], taken["cause"]) == (job, "from-ada-2", "cancelled")
