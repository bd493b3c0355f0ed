"""Endpoints for addons, as data: collaborators and Jupyter."""

from collections.abc import Sequence

from gpudev.sdk.http.endpoints import ApiCall, job_path, path_segment, read_call
from gpudev.wire import codec
from gpudev.wire.sessions import AddUsersRequest, DevServerUsers, JupyterLink, JupyterView


def list_users(job_id: str) -> ApiCall[DevServerUsers]:
    return read_call(DevServerUsers, f"{job_path(job_id)}/users")


def add_users(job_id: str, names: Sequence[str]) -> ApiCall[DevServerUsers]:
    """Who is there already stays there, so it may be said twice."""
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
