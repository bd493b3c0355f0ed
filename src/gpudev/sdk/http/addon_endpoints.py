"""Questions about the inside of a dev server: who else may log in, and Jupyter."""

from collections.abc import Sequence

from gpudev.sdk.http.endpoints import Call, in_path, job_path, reading
from gpudev.wire import codec
from gpudev.wire.sessions import AddUsersRequest, DevServerUsers, JupyterLink, JupyterView


def list_users(job_id: str) -> Call[DevServerUsers]:
    return reading(DevServerUsers, f"{job_path(job_id)}/users")


def add_users(job_id: str, names: Sequence[str]) -> Call[DevServerUsers]:
    """Who is there already stays there, so it may be said twice."""
    body = codec.encode_model(AddUsersRequest(github_users=list(names)))
    return Call(DevServerUsers, "POST", f"{job_path(job_id)}/users", body, repeatable=True)


def remove_user(job_id: str, name: str) -> Call[DevServerUsers]:
    return Call(DevServerUsers, "DELETE", f"{job_path(job_id)}/users/{in_path(name, 'user')}", repeatable=False)


def get_jupyter(job_id: str) -> Call[JupyterView]:
    return reading(JupyterView, f"{job_path(job_id)}/jupyter")


def enable_jupyter(job_id: str) -> Call[JupyterView]:
    return Call(JupyterView, "POST", f"{job_path(job_id)}/jupyter/enable", repeatable=True)


def disable_jupyter(job_id: str) -> Call[JupyterView]:
    return Call(JupyterView, "POST", f"{job_path(job_id)}/jupyter/disable", repeatable=True)


def link_to_jupyter(job_id: str) -> Call[JupyterLink]:
    return Call(JupyterLink, "POST", f"{job_path(job_id)}/jupyter/link", repeatable=True)
