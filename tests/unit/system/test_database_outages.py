"""Which answers of PostgreSQL mean an outage, and which an error of ours."""

import asyncpg
import pytest

from gpudev.adapters.postgres.database.pool import describe_outage, translate_errors
from gpudev.domain.errors import NotFound, Unavailable
from gpudev.http_edge.error_responses import to_error_response


def answer_of_server(state: str) -> asyncpg.PostgresError:
    return asyncpg.PostgresError.new({"C": state, "M": "could not extend file base/5/1234: /srv/data"})


@pytest.mark.parametrize(
    ("state", "outage"),
    [
        ("53000", "lacks resources"),
        ("53100", "cannot write, its disk is full"),
        ("53200", "is out of memory"),
        ("53300", "does not answer"),
        ("53400", "lacks resources"),
        ("58030", "cannot use its disk"),
        ("25006", "is read-only"),
        ("57P01", "does not answer"),
        ("57P02", "does not answer"),
        ("57P03", "does not answer"),
        ("08006", "does not answer"),
    ],
)
def test_what_an_operator_has_to_mend_is_told_as_unavailable(state: str, outage: str) -> None:
    with pytest.raises(Unavailable) as raised, translate_errors():
        raise answer_of_server(state)
    answer = to_error_response(raised.value)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert answer.detail == f"the database {outage}"
    assert "/srv/data" in raised.value.message, "the log has the cause"


@pytest.mark.parametrize("state", ["23505", "42P01", "22001", "40001", "57014", "XX000"])
def test_an_error_of_ours_passes(state: str) -> None:
    with pytest.raises(asyncpg.PostgresError), translate_errors():
        raise answer_of_server(state)


@pytest.mark.parametrize("error", [None, ValueError("any"), NotFound("nothing")])
def test_what_is_not_about_the_database_is_no_outage(error: Exception | None) -> None:
    assert describe_outage(error) is None


@pytest.mark.parametrize("error", [ConnectionRefusedError(), TimeoutError(), asyncpg.InterfaceError("closed")])
def test_a_server_that_cannot_be_reached_does_not_answer(error: Exception) -> None:
    assert describe_outage(error) == "does not answer"
