"""Endpoints for users, API keys and the audit log."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated

import structlog
from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.authentication import Authentication
from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.parameters import UtcTime
from gpudev.api.http.responses import JsonResponse
from gpudev.api.http.routing import Caller, V1Route
from gpudev.domain.access.users import Role, User, check_username
from gpudev.domain.errors import Conflict, Invalid
from gpudev.http_edge.audit import AuditTrail
from gpudev.ports.access import AuditLog, AuditQuery, KeyRecord, UserAdministration, UserStore
from gpudev.wire.access import KeyView
from gpudev.wire.admin import (
    AuditEntryList,
    AuditEntryView,
    KeyList,
    KeyRecordView,
    NewUserRequest,
    RoleRequest,
    UserList,
    UserView,
)

log = structlog.get_logger()


def _check_printable(text: str) -> str:
    if not 1 <= len(text) <= 255 or not text.isprintable():
        raise ValueError("must be 1 to 255 printable characters")
    return text


def _check_username_text(text: str) -> str:
    try:
        return check_username(text)
    except Invalid as error:
        raise ValueError("must be a username") from error


_NAME_PATTERN = {"pattern": "^[A-Za-z0-9][A-Za-z0-9._@+-]{0,254}$"}
Username = Annotated[
    Annotated[str, AfterValidator(_check_username_text)],
    Path(description="A username", json_schema_extra=_NAME_PATTERN),
]
UserFilter = Annotated[
    Annotated[str, AfterValidator(_check_username_text)] | None,
    Query(description="Only entries of this user", json_schema_extra=_NAME_PATTERN),
]
SubstringFilter = Annotated[
    Annotated[str, AfterValidator(_check_printable)] | None,
    Query(description="Only entries that contain this text", json_schema_extra={"minLength": 1, "maxLength": 255}),
]
Since = Annotated[
    UtcTime | None, Query(description="Only entries from this time on", examples=["2026-03-02T09:00:00Z"])
]
KeyId = Annotated[int, Path(description="A key's id, as in the list of keys", ge=1, le=2**31 - 1)]
_WRITE_STATUSES = (400, 401, 403, 404, 409, 413, 415, 422, 429, 503)


@dataclass(frozen=True, slots=True)
class AdminEndpoints:
    users: UserStore
    administration: UserAdministration
    audit_log: AuditLog
    trail: AuditTrail
    authentication: Authentication

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1", tags=["administration"], route_class=V1Route)
        add = router.add_api_route
        read_errors, write_errors = (
            problem_responses(401, 403, 404, 422, 429, 503),
            problem_responses(401, 403, 404, 409, 422, 429, 503),
        )
        add("/users", self.list_users, response_model=UserList, summary="List users", responses=read_errors)
        add(
            "/users",
            self.add_user,
            methods=["POST"],
            status_code=201,
            response_model=UserView,
            summary="Create a user (without a key)",
            responses=problem_responses(*_WRITE_STATUSES),
        )
        add(
            "/users/{username}/role",
            self.set_role,
            methods=["POST"],
            response_model=UserView,
            summary="Set a user's role",
            responses=problem_responses(*_WRITE_STATUSES),
        )
        add(
            "/users/{username}/disable",
            self.disable,
            methods=["POST"],
            response_model=UserView,
            summary="Disable a user and revoke their keys",
            responses=write_errors,
        )
        add(
            "/users/{username}/enable",
            self.enable,
            methods=["POST"],
            response_model=UserView,
            summary="Enable a user",
            responses=write_errors,
        )
        add("/keys", self.list_keys, response_model=KeyList, summary="List all API keys", responses=read_errors)
        add(
            "/keys/{key_id}/revoke",
            self.revoke,
            methods=["POST"],
            response_model=KeyRecordView,
            summary="Revoke an API key",
            responses=write_errors,
        )
        add("/audit", self.audit, response_model=AuditEntryList, summary="Read the audit log", responses=read_errors)
        return router

    async def list_users(self, _caller: Caller) -> Response:
        return JsonResponse(UserList(users=[_user_view(user) for user in await self.users.list_users()]))

    async def add_user(self, body: NewUserRequest, _caller: Caller, request: Request) -> Response:
        """A person becomes this user at their first login, with any login method of this server."""
        request.state.audit_target = f"{body.username} ({body.role})"
        user = await self.users.add_user(check_username(body.username), Role(body.role))
        return JsonResponse(_user_view(user), 201, {"Location": f"/v1/users/{user.username}"})

    async def set_role(self, username: Username, body: RoleRequest, caller: Caller, request: Request) -> Response:
        """Takes effect with the next request (within a second in other API processes)."""
        request.state.audit_target = f"{username} ({body.role})"
        _check_not_self(caller.user, username, "change the role of")
        changed = await self.administration.set_role(username, Role(body.role))
        self.authentication.forget_user(changed.user_id)
        log.info("user.role", username=changed.username, role=changed.role.value, by=caller.user.username)
        return JsonResponse(_user_view(changed))

    async def disable(self, username: Username, caller: Caller) -> Response:
        """Their keys are revoked for good, within a second. Their reservations run until they end or are cancelled."""
        _check_not_self(caller.user, username, "disable")
        changed = await self.administration.set_active(username, False)
        self.authentication.forget_user(changed.user_id)
        log.info("user.disabled", username=changed.username, by=caller.user.username)
        return JsonResponse(_user_view(changed))

    async def enable(self, username: Username, caller: Caller) -> Response:
        """Revoked keys stay revoked: the user has to log in again."""
        changed = await self.administration.set_active(username, True)
        log.info("user.enabled", username=changed.username, by=caller.user.username)
        return JsonResponse(_user_view(changed))

    async def list_keys(
        self,
        _caller: Caller,
        user: UserFilter = None,
        ended: Annotated[bool, Query(description="Include expired and revoked keys")] = False,
    ) -> Response:
        """Newest first. Only hashes are stored: a key is identified by its id and prefix."""
        found = await self.administration.list_keys(user, ended=ended)
        return JsonResponse(KeyList(keys=[_key_view(record) for record in found]))

    async def revoke(self, key_id: KeyId, caller: Caller) -> Response:
        """Takes effect within a second. Idempotent."""
        revoked = await self.administration.revoke_key(key_id)
        self.authentication.forget_key(key_id)
        log.info("key.revoked", username=revoked.username, key_id=key_id, by=caller.user.username)
        return JsonResponse(_key_view(revoked))

    async def audit(
        self,
        _caller: Caller,
        user: UserFilter = None,
        action: SubstringFilter = None,
        outcome: SubstringFilter = None,
        since: Since = None,
        limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries")] = 100,
    ) -> Response:
        """Every change, login and denied request: the newest `limit` entries, oldest first."""
        await self.trail.flush()
        query = AuditQuery(username=user, action=action, outcome=outcome, since=since, limit=limit)
        found = await self.audit_log.find_entries(query)
        return JsonResponse(AuditEntryList(entries=[AuditEntryView(**asdict(entry)) for entry in found]))


def _check_not_self(caller: User, username: str, action: str) -> None:
    """Admins cannot disable or demote themselves, so at least one admin remains."""
    if caller.username == username:
        raise Conflict(f"you cannot {action} yourself; another admin can")


def _user_view(user: User) -> UserView:
    return UserView(username=user.username, role=user.role.value, is_active=user.is_active, email=user.email)


def _key_view(record: KeyRecord) -> KeyRecordView:
    return KeyRecordView(**asdict(record))


# The caller's own API key: rotate and revoke.


@dataclass(frozen=True, slots=True)
class KeyEndpoints:
    users: UserStore
    authentication: Authentication
    ttl: timedelta | None

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=V1Route)
        router.add_api_route(
            "/rotate",
            self.rotate,
            methods=["POST"],
            response_model=KeyView,
            summary="Replace this API key",
            responses=problem_responses(401, 503),
        )
        router.add_api_route(
            "/current",
            self.revoke,
            methods=["DELETE"],
            status_code=204,
            response_class=Response,
            summary="Revoke this API key",
            responses=problem_responses(401, 503),
        )
        return router

    async def rotate(self, caller: Caller) -> Response:
        """Returns a new key, shown only once, and revokes the one used for this request. The new key expires when the
        old one would have."""
        ttl = None if caller.expires_at is None else self.ttl
        issued = await self.users.rotate_key(caller.key_id, ttl)
        self.authentication.forget_key(caller.key_id)
        log.info("key.rotated", username=caller.user.username, key_id=caller.key_id)
        view = KeyView(api_key=issued.secret, expires_at=issued.expires_at, username=caller.user.username)
        return JsonResponse(view, headers={"Cache-Control": "no-store"})

    async def revoke(self, caller: Caller) -> Response:
        """Revokes the key used for this request (logout)."""
        await self.users.revoke_key(caller.key_id)
        self.authentication.forget_key(caller.key_id)
        log.info("key.revoked", username=caller.user.username, key_id=caller.key_id)
        return Response(status_code=204)
