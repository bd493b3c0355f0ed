"""Endpoints for running dev servers, as data: collaborators, Jupyter and proxy tokens."""

import time
from collections.abc import Sequence

from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.endpoints import ApiCall, ApiReply, job_path, path_segment, read_call
from gpudev.sdk.http.routines import Pause, Routine
from gpudev.wire import codec
from gpudev.wire.sessions import AddUsersRequest, DevServerUsers, JupyterLink, JupyterView, ProxyToken

_POLL_SECONDS = 0.25


def list_users(job_id: str) -> ApiCall[DevServerUsers]:
    return read_call(DevServerUsers, f"{job_path(job_id)}/users")


def add_users(job_id: str, names: Sequence[str]) -> ApiCall[DevServerUsers]:
    """Repeatable: adding an existing collaborator changes nothing."""
    body = codec.encode_model(AddUsersRequest(github_users=list(names)))
    return ApiCall(DevServerUsers, "POST", f"{job_path(job_id)}/users", body, repeatable=True)


def remove_user(job_id: str, name: str) -> ApiCall[DevServerUsers]:
    return ApiCall(DevServerUsers, "DELETE", f"{job_path(job_id)}/users/{path_segment(name, 'user')}", repeatable=False)


def get_jupyter(job_id: str) -> ApiCall[JupyterView]:
    return read_call(JupyterView, f"{job_path(job_id)}/jupyter")


def enable_jupyter(job_id: str) -> ApiCall[JupyterView]:
    return ApiCall(JupyterView, "POST", f"{job_path(job_id)}/jupyter/enable", repeatable=True)


def disable_jupyter(job_id: str) -> ApiCall[JupyterView]:
    return ApiCall(JupyterView, "POST", f"{job_path(job_id)}/jupyter/disable", repeatable=True)


def create_jupyter_link(job_id: str) -> ApiCall[JupyterLink]:
    return ApiCall(JupyterLink, "POST", f"{job_path(job_id)}/jupyter/link", repeatable=True)


def create_proxy_token(job_id: str) -> ApiCall[ProxyToken]:
    return ApiCall(ProxyToken, "POST", f"{job_path(job_id)}/proxy-token", repeatable=True)


def wait_for_jupyter(
    client: ApiClient, job_id: str, first: ApiReply[JupyterView], *, deadline: float
) -> Routine[ApiReply[JupyterView]]:
    """Its state once it has started or failed; still `starting` if the deadline (`time.monotonic`) has passed."""
    reply = first
    while reply.value.state == "starting" and time.monotonic() <= deadline:
        yield Pause(_POLL_SECONDS)
        reply = yield from client.fetch(get_jupyter(job_id))
    return reply


def absolute_link(api_url: str, link: JupyterLink) -> str:
    """An API that does not know its own address returns only the path."""
    return link.url if "://" in link.url else f"{api_url}{link.url}"
