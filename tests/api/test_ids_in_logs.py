"""From what somebody was told to what the processor did: the ids that lead there."""

import httpx2
import structlog
from structlog.testing import capture_logs

from support.api import Api, submit


async def test_the_line_of_a_submit_has_the_ids_of_its_request_and_of_its_reservation(
    api: Api, ada: httpx2.AsyncClient
) -> None:
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        ada.headers["X-Request-ID"] = "from-ada-1"
        job = (await submit(ada))["job_id"]
        await api.world.turn(1)
    (line,) = [line for line in lines if line["event"] == "http.request"]
    assert (line["request_id"], line["reservation_id"]) == ("from-ada-1", job)
    (taken,) = [line for line in lines if line["event"] == "message.taken"]
    assert (taken["reservation_id"], taken["cause"]) == (job, "submitted")


async def test_a_cancels_request_id_goes_with_its_message_to_the_processor(api: Api, ada: httpx2.AsyncClient) -> None:
    job = (await submit(ada))["job_id"]
    await api.world.turn()
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        await ada.post(f"/v1/jobs/{job}/cancel", headers={"X-Request-ID": "from-ada-2"})
        await api.world.turn(1)
    (taken,) = [line for line in lines if line["event"] == "message.taken"]
    assert (taken["reservation_id"], taken["request_id"], taken["cause"]) == (job, "from-ada-2", "cancelled")
