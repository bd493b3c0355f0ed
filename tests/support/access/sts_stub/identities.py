"""Those whom the stub knows."""

import hashlib
from dataclasses import dataclass

ACCOUNT = "123456789012"
ROLE = "SSOCloudDevGpuReservation"


@dataclass(frozen=True, slots=True)
class Identity:
    access_key: str
    secret: str
    token: str | None
    arn: str
    user_id: str
    account: str = ACCOUNT


def single_sign_on(name: str, role: str = ROLE, account: str = ACCOUNT) -> Identity:
    """Somebody who came in by single sign-on."""
    return assumed(f"AWSReservedSSO_{role}_0123456789abcdef", name, account)


def assumed(role: str, session: str, account: str = ACCOUNT, partition: str = "aws") -> Identity:
    return _identity(
        f"arn:{partition}:sts::{account}:assumed-role/{role}/{session}", f"AROAEXAMPLEROLE000000:{session}", account
    )


def any_caller(arn: str, user_id: str, account: str = ACCOUNT) -> Identity:
    return _identity(arn, user_id, account)


def _identity(arn: str, user_id: str, account: str) -> Identity:
    digest = hashlib.sha256(f"{arn} {user_id} {account}".encode()).hexdigest()
    return Identity(
        f"ASIA{digest[:16].upper()}", f"secret-{digest[16:48]}", f"token+{digest}/==", arn, user_id, account
    )
