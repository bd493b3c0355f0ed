"""Login and API keys on the wire."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class LoginMethod:
    """One login method, and what a client needs for it. Contains no secrets."""

    kind: str = field(metadata={"description": "aws, oidc, invitation or local"})
    server_names: list[str] | None = field(
        default=None, metadata={"description": "aws: accepted server names in a signed request"}
    )
    roles: list[str] | None = field(default=None, metadata={"description": "aws: roles, one of which is required"})
    regions: list[str] | None = field(
        default=None, metadata={"description": "aws: regions whose STS endpoint is accepted"}
    )
    issuer: str | None = field(default=None, metadata={"description": "oidc: the issuer of accepted ID tokens"})
    client_id: str | None = field(default=None, metadata={"description": "oidc: the audience of accepted ID tokens"})
    client_secret: str | None = field(
        default=None,
        metadata={"description": "oidc: the client secret that some issuers require; not confidential"},
    )
    scopes: list[str] | None = field(default=None, metadata={"description": "oidc: scopes to request from the issuer"})


@dataclass(frozen=True, kw_only=True)
class LoginMethods:
    methods: list[LoginMethod]


@dataclass(frozen=True, kw_only=True)
class NonceView:
    """Valid for one login until it expires."""

    nonce: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class AwsLoginRequest:
    """A request to STS, signed with the caller's AWS credentials. It contains no secret key."""

    method: str = field(metadata={"description": "POST"})
    url: str = field(metadata={"description": "The STS endpoint of one of the regions: https://sts.REGION.…/"})
    headers: dict[str, str] = field(
        metadata={
            "description": "Host, Content-Type, X-Amz-Date, X-Amz-Security-Token, X-GPU-Dev-Server, X-GPU-Dev-Nonce "
            "and Authorization; all others must be signed, and no further ones are accepted"
        }
    )
    body: str = field(metadata={"description": "Action=GetCallerIdentity&Version=2011-06-15"})


@dataclass(frozen=True, kw_only=True)
class LoginView:
    """A key, shown once, and its user."""

    api_key: str
    expires_at: datetime | None
    username: str
    role: str


# Login with an ID token or an invitation.


_STRICT: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class OidcLoginRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    id_token: str = field(metadata={"description": "As issued, at most minutes old; valid once"})
    nonce: str | None = field(default=None, metadata={"description": "The nonce sent to the issuer, if any"})


@dataclass(frozen=True, kw_only=True)
class InvitationLoginRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    secret: str = field(metadata={"description": "From the invitation's link; valid once"})


@dataclass(frozen=True, kw_only=True)
class KeyView:
    """A key, shown once."""

    api_key: str
    expires_at: datetime | None
    username: str
