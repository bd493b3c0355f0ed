"""Who gets through the proxy, how long, and where nobody ever gets."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.domain.errors import ClusterError, Conflict, Unauthenticated
from gpudev.domain.ids import UserId, new_reservation_id
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.domain.sessions.grants import CloseCode, Grant, GrantState
from gpudev.planning.sessions import admit_session, check_server_address, find_session_end
from support.clock import ManualClock

NOW = ManualClock().now()
SOON = NOW + timedelta(seconds=1)
WHERE = SshEndpoint("10.0.0.7", 31234, "dev", "ssh-ed25519 AAAA")
GRANT = Grant(new_reservation_id(), UserId(1), 7)
GOOD = GrantState("ada", True, True, True, Status.ACTIVE, WHERE)


def test_a_good_token_leads_to_the_recorded_address() -> None:
    assert admit_session(GRANT.reservation_id, GRANT, SOON, GOOD, NOW) == WHERE
    assert find_session_end(GRANT, GOOD) is None


def test_a_token_is_good_for_its_own_reservation_and_its_own_time() -> None:
    for wrong in (
        (new_reservation_id(), GRANT, SOON, GOOD, NOW),
        (GRANT.reservation_id, GRANT, NOW, GOOD, NOW),
        (GRANT.reservation_id, None, None, None, NOW),
        (GRANT.reservation_id, GRANT, SOON, None, NOW),
    ):
        with pytest.raises(Unauthenticated):
            admit_session(*wrong)


@pytest.mark.parametrize(
    "now_is",
    [
        replace(GOOD, username=None, user_is_active=False),
        replace(GOOD, user_is_active=False),
        replace(GOOD, key_is_active=False),
        replace(GOOD, may_enter=False),
        replace(GOOD, status=None, connection=None),
    ],
    ids=["no user", "disabled", "key revoked", "not theirs", "no reservation"],
)
def test_whose_access_has_ended_is_out(now_is: GrantState) -> None:
    ending = find_session_end(GRANT, now_is)
    assert ending is not None
    assert ending.code is CloseCode.ACCESS_ENDED
    with pytest.raises(Unauthenticated):
        admit_session(GRANT.reservation_id, GRANT, SOON, now_is, NOW)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.ACTIVE])
def test_a_session_lasts_as_long_as_its_reservation_is_active(status: Status) -> None:
    now_is = replace(GOOD, status=status)
    ending = find_session_end(GRANT, now_is)
    assert ending is not None
    assert ending.code is CloseCode.RESERVATION_ENDED
    assert status.value in ending.reason
    with pytest.raises(Conflict):
        admit_session(GRANT.reservation_id, GRANT, SOON, now_is, NOW)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "fd00:ec2::254",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
        "::ffff:168.63.129.16",
        "64:ff9b::168.63.129.16",
        "2002:6464:64c8::1",
        "fd00:42::42",
        "::ffff:169.254.169.254",
        "2002:a9fe:a9fe::",
        "fe80::1%eth0",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "127.0.0.1",
        "127.8.8.8",
        "::1",
        "::ffff:127.0.0.1",
        "10.0.0.2",
    ],
)
def test_no_dev_server_is_at_such_an_address(address: str) -> None:
    with pytest.raises(ClusterError):
        check_server_address(address, 5432, loopback_allowed=False, ours={("10.0.0.2", 5432), ("db.internal", 5432)})


def test_dev_servers_are_at_addresses_like_these() -> None:
    for address, port in (("10.0.0.7", 31234), ("192.168.1.4", 22), ("203.0.113.9", 30022), ("2001:db8::7", 22)):
        check_server_address(address, port, loopback_allowed=False, ours={("10.0.0.7", 5432)})
    check_server_address("127.0.0.1", 20001, loopback_allowed=True, ours={("127.0.0.1", 5432)})
    with pytest.raises(ClusterError):
        check_server_address("::ffff:127.0.0.1", 5432, loopback_allowed=True, ours={("127.0.0.1", 5432)})
    with pytest.raises(ClusterError):
        check_server_address("10.0.0.7", 0, loopback_allowed=False, ours=())
