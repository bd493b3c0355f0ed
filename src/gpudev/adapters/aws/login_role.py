"""Which of AWS's callers may come in, and who they are here. Pure.

A caller is let in for holding a role: the role itself, or the one that AWS's single sign-on makes for a permission set
of that name. Their name is the role session's, in lower case (single sign-on knows no other difference).

Single sign-on sets that name itself. Whoever assumes a role by hand chooses it, so a role's sessions can only ever be
users that began as that role's sessions.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpudev.adapters.aws.caller_identity import CallerIdentity
from gpudev.domain.errors import Forbidden
from gpudev.ports.access import Person

_ASSUMED_ROLE = re.compile(
    r"arn:(?P<partition>aws[a-z-]{0,20}):sts::(?P<account>[0-9]{12}):assumed-role/"
    r"(?P<role>[A-Za-z0-9_+=,.@-]{1,64})/(?P<session>[A-Za-z0-9_+=,.@-]{2,64})"
)
_SINGLE_SIGN_ON = re.compile(r"AWSReservedSSO_(?P<set>[A-Za-z0-9_+=,.@-]{1,32})_[0-9a-f]{16}")
_ROLE_ID = r"AROA[A-Z0-9]{12,124}"


@dataclass(frozen=True, slots=True)
class LoginRoles:
    roles: Sequence[str]
    accounts: Sequence[str]

    def admit(self, caller: CallerIdentity, partition: str) -> Person:
        """Raises Forbidden, naming what is needed."""
        found = _ASSUMED_ROLE.fullmatch(caller.arn)
        if found is None or not _is_consistent(caller, found):
            raise self._forbidden(caller)
        if found["partition"] != partition or found["account"] not in self.accounts:
            raise self._forbidden(caller)
        session = found["session"].lower()
        single_sign_on = _SINGLE_SIGN_ON.fullmatch(found["role"])
        if single_sign_on and single_sign_on["set"] in self.roles:
            given_by = "sso"
        elif found["role"] in self.roles:
            given_by = f"role/{found['role']}"
        else:
            raise self._forbidden(caller)
        return Person(
            username=session,
            provider="aws",
            subject=f"{partition}:{found['account']}:{given_by}:{session}",
            email=session if "@" in session else None,
        )

    def _forbidden(self, caller: CallerIdentity) -> Forbidden:
        roles, accounts = " or ".join(self.roles), " or ".join(self.accounts)
        return Forbidden(
            f"this needs the role {roles} in the account {accounts}; AWS says you are {caller.arn[:256]!r}"
        )


def _is_consistent(caller: CallerIdentity, arn: re.Match[str]) -> bool:
    """The answer says the same thrice."""
    return caller.account == arn["account"] and bool(
        re.fullmatch(f"{_ROLE_ID}:{re.escape(arn['session'])}", caller.user_id)
    )
