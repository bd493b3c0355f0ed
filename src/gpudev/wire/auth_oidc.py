"""Logging in with an ID token or an invitation, on the wire."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

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
