"""Login and API keys on the wire."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class LoginMethod:
    """One way in, and what a client must know to take it. Nothing here is secret."""

    kind: str = field(metadata={"description": "aws, oidc, invitation or local"})
    server_names: list[str] | None = field(
        default=None, metadata={"description": "aws: as what the server may be addressed in a signed request"}
    )
    roles: list[str] | None = field(default=None, metadata={"description": "aws: the roles of which one is needed"})
    regions: list[str] | None = field(
        default=None, metadata={"description": "aws: for which regions' STS a request may be signed"}
    )
    issuer: str | None = field(default=None, metadata={"description": "oidc: who gives the ID tokens that are taken"})
    client_id: str | None = field(default=None, metadata={"description": "oidc: whom these tokens must be for"})
    client_secret: str | None = field(
        default=None, metadata={"description": "oidc: what some issuers give to every program; not a secret"}
    )
    scopes: list[str] | None = field(default=None, metadata={"description": "oidc: what to ask the issuer for"})


@dataclass(frozen=True, kw_only=True)
class LoginMethods:
    methods: list[LoginMethod]


@dataclass(frozen=True, kw_only=True)
class NonceView:
    """Good for one login, in its time."""

    nonce: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class AwsLoginRequest:
    """A request to STS, signed with the caller's AWS credentials. It holds no secret key."""

    method: str = field(metadata={"description": "POST"})
    url: str = field(metadata={"description": "The STS endpoint of one of the regions: https://sts.REGION.…/"})
    headers: dict[str, str] = field(
        metadata={
            "description": "Host, Content-Type, X-Amz-Date, X-Amz-Security-Token, X-GPU-Dev-Server, X-GPU-Dev-Nonce "
            "and Authorization; all others must be signed, and no further ones are taken"
        }
    )
    body: str = field(metadata={"description": "Action=GetCallerIdentity&Version=2011-06-15"})


@dataclass(frozen=True, kw_only=True)
class LoginView:
    """A key, shown once, and whom it speaks for."""

    api_key: str
    expires_at: datetime | None
    username: str
    role: str


# Login with an ID token or an invitation.


_STRICT: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class OidcLoginRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    id_token: str = field(metadata={"description": "As the issuer gave it, minutes ago at most; it is good once"})
    nonce: str | None = field(
        default=None, metadata={"description": "What the login sent to the issuer, where it sent one"}
    )


@dataclass(frozen=True, kw_only=True)
class InvitationLoginRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    secret: str = field(metadata={"description": "From the invitation's link; it is good once"})


@dataclass(frozen=True, kw_only=True)
class KeyView:
    """A key, shown once."""

    api_key: str
    expires_at: datetime | None
    username: str
