"""The inside of a dev server, as programs use it: who else may log in, and Jupyter."""

from dataclasses import replace
from time import monotonic

from gpudev.sdk.effects import Pause, Routine
from gpudev.sdk.errors import NotInTime, Refused
from gpudev.sdk.http import addon_endpoints
from gpudev.sdk.offering import Awaiting, Blocking, Group, offered
from gpudev.wire.sessions import DevServerUsers, JupyterLink, JupyterView

_LOOK_AGAIN_SECONDS = 0.25


class UserMethods(Group):
    """`client.users`: colleagues who may log in to a dev server, by the keys they publish on GitHub."""

    @offered
    def add(self, job_id: str, *github_users: str) -> Routine[DevServerUsers]:
        """Let them log in, within seconds. Raises Refused for somebody who publishes no keys."""
        return self._core.value(addon_endpoints.add_users(job_id, github_users))

    @offered
    def remove(self, job_id: str, github_user: str) -> Routine[DevServerUsers]:
        """Let them in no more; their connections end."""
        return self._core.value(addon_endpoints.remove_user(job_id, github_user))

    @offered
    def list(self, job_id: str) -> Routine[DevServerUsers]:
        """Who may log in beside the owner, and whether the dev server has it so by now."""
        return self._core.value(addon_endpoints.list_users(job_id))


class Users(UserMethods, Blocking):
    pass


class AsyncUsers(UserMethods, Awaiting):
    pass


class JupyterMethods(Group):
    """`client.jupyter`: Jupyter Lab in a dev server that runs."""

    @offered
    def enable(self, job_id: str, *, wait: bool = True, timeout: float = 120.0) -> Routine[JupyterView]:
        """Start it, and wait until it answers. Raises Refused with the reason if it does not start, NotInTime after
        `timeout` seconds."""
        deadline = monotonic() + timeout
        view = yield from self._core.value(addon_endpoints.enable_jupyter(job_id))
        while wait and view.state != "ready":
            if view.state != "starting":
                raise Refused(f"Jupyter does not run: {view.reason or 'it was disabled'}", code="jupyter_failed")
            if monotonic() > deadline:
                raise NotInTime(f"Jupyter is {view.state} still" + (f": {view.trouble}" if view.trouble else ""))
            yield Pause(_LOOK_AGAIN_SECONDS)
            view = yield from self._core.value(addon_endpoints.get_jupyter(job_id))
        return view

    @offered
    def link(self, job_id: str) -> Routine[JupyterLink]:
        """What opens it in a browser, once, for its owner."""
        link = yield from self._core.value(addon_endpoints.link_to_jupyter(job_id))
        here = link.url if "://" in link.url else f"{self._session.address.url}{link.url}"
        return replace(link, url=here)

    @offered
    def get(self, job_id: str) -> Routine[JupyterView]:
        """How it is."""
        return self._core.value(addon_endpoints.get_jupyter(job_id))

    @offered
    def disable(self, job_id: str) -> Routine[JupyterView]:
        """Stop it, and its kernels."""
        return self._core.value(addon_endpoints.disable_jupyter(job_id))


class Jupyter(JupyterMethods, Blocking):
    pass


class AsyncJupyter(JupyterMethods, Awaiting):
    pass
