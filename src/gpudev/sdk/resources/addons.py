"""Collaborators and Jupyter of a dev server."""

from dataclasses import replace
from time import monotonic

from gpudev.sdk.errors import NotInTime, Rejected
from gpudev.sdk.http import session_endpoints
from gpudev.sdk.http.routines import Routine
from gpudev.sdk.resources.sync_async import AsyncResource, Resource, SyncResource, api_method
from gpudev.wire.sessions import DevServerUsers, JupyterLink, JupyterView


class UserMethods(Resource):
    """`client.users`: collaborators of a dev server, who log in with their GitHub keys."""

    @api_method
    def add(self, job_id: str, *github_users: str) -> Routine[DevServerUsers]:
        """Add collaborators; takes effect within seconds. Raises Rejected for a GitHub user without public keys."""
        return self._client.fetch_value(session_endpoints.add_users(job_id, github_users))

    @api_method
    def remove(self, job_id: str, github_user: str) -> Routine[DevServerUsers]:
        """Remove a collaborator and close their connections."""
        return self._client.fetch_value(session_endpoints.remove_user(job_id, github_user))

    @api_method
    def list(self, job_id: str) -> Routine[DevServerUsers]:
        """The collaborators, and whether the dev server has applied the list."""
        return self._client.fetch_value(session_endpoints.list_users(job_id))


class Users(UserMethods, SyncResource):
    pass


class AsyncUsers(UserMethods, AsyncResource):
    pass


class JupyterMethods(Resource):
    """`client.jupyter`: Jupyter Lab on a running dev server."""

    @api_method
    def enable(self, job_id: str, *, wait: bool = True, timeout: float = 120.0) -> Routine[JupyterView]:
        """Start it, and wait until it is ready. Raises Rejected with the reason if it fails, NotInTime after `timeout`
        seconds."""
        deadline = monotonic() + timeout
        reply = yield from self._client.fetch(session_endpoints.enable_jupyter(job_id))
        if not wait:
            return reply.value
        view = (yield from session_endpoints.wait_for_jupyter(self._client, job_id, reply, deadline=deadline)).value
        if view.state == "starting":
            raise NotInTime(f"Jupyter is still {view.state}" + (f": {view.trouble}" if view.trouble else ""))
        if view.state != "ready":
            raise Rejected(f"Jupyter is not running: {view.reason or 'it was disabled'}", code="jupyter_failed")
        return view

    @api_method
    def link(self, job_id: str) -> Routine[JupyterLink]:
        """A link that opens it in a browser. It works once, for the owner."""
        link = yield from self._client.fetch_value(session_endpoints.create_jupyter_link(job_id))
        return replace(link, url=session_endpoints.absolute_link(self._session.address.url, link))

    @api_method
    def get(self, job_id: str) -> Routine[JupyterView]:
        """Its state."""
        return self._client.fetch_value(session_endpoints.get_jupyter(job_id))

    @api_method
    def disable(self, job_id: str) -> Routine[JupyterView]:
        """Stop it and its kernels."""
        return self._client.fetch_value(session_endpoints.disable_jupyter(job_id))


class Jupyter(JupyterMethods, SyncResource):
    pass


class AsyncJupyter(JupyterMethods, AsyncResource):
    pass
