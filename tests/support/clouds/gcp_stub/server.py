"""The stub on a socket: routes, permissions, misbehaviour."""

import asyncio
import json
import socket
import struct

from aiohttp import web

from support.clouds.gcp_stub.faults import THROTTLED, Effect, Refuse, Refused, Request
from support.clouds.gcp_stub.listing import Listings
from support.clouds.gcp_stub.project import Project, Resource
from support.clouds.stub_faults import Cut, Delay, Fault, FaultyStub, Nonsense, Reset

_ALSO_NEEDED = {
    "compute.disks.create": ("labels", "compute.disks.setLabels"),
    "compute.disks.createSnapshot": ("labels", "compute.snapshots.setLabels"),
}


class GcpStub(FaultyStub[Effect, Request]):
    """Serves in the running event loop."""

    def __init__(self, project: Project | None = None) -> None:
        super().__init__()
        self.project = project or Project()
        self.listings = Listings(self.project)
        self.headers: list[dict[str, str]] = []
        self.address = ""
        self._runner: web.AppRunner | None = None
        self._socket: asyncio.Server | None = None
        self._connections: set[asyncio.Transport] = set()

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.route(method, path, self._serve) for method, path in _ACTIONS])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        assert self._runner.server is not None
        self._socket = await asyncio.get_running_loop().create_server(self._runner.server, "127.0.0.1", 0)
        host, port = self._socket.sockets[0].getsockname()[:2]
        self.address = f"http://{host}:{port}"

    async def close(self) -> None:
        self.stop_listening()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def stop_listening(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for connection in self._connections:
            connection.abort()

    def throttle(self, requests: int) -> None:
        self.faults.append(Fault(THROTTLED, times=requests))

    # --- one request -------------------------------------------------------------------------------------------------

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        assert http.transport is not None
        assert http.match_info.route.resource is not None
        self._connections.add(http.transport)
        action = _ACTIONS[http.method, http.match_info.route.resource.canonical]
        body = await http.json() if http.can_read_body else None
        request = Request(http.method, action, http.path, dict(http.query), body)
        self.called.append(request)
        self.headers.append({name.lower(): value for name, value in http.headers.items()})
        self.project.tick()
        effect = self.effect_on(request)
        if effect == Reset(after_the_effect=False):
            return _break(http)
        try:
            if isinstance(effect, Refuse):
                raise effect.error()
            self._authorise(request)
            status, answer = 200, self._answer(action, request, dict(http.match_info))
        except Refused as refused:
            status, answer = refused.status, refused.answer()
        return await _send(http, status, json.dumps(answer).encode(), effect)

    def _authorise(self, request: Request) -> None:
        needed = {request.action}
        if request.action in _ALSO_NEEDED:
            field, permission = _ALSO_NEEDED[request.action]
            needed |= {permission} if request.body.get(field) else set()
        if request.action == "compute.disks.createSnapshot":
            needed.add("compute.snapshots.create")
        if request.body and request.body.get("sourceSnapshot"):
            needed.add("compute.snapshots.useReadOnly")
        for permission in sorted(needed):
            if not self.may(permission):
                raise Refused(403, "forbidden", f"Required '{permission}' permission for '{request.path}'")

    def _answer(self, action: str, request: Request, at: dict[str, str]) -> Resource:
        project = self.project
        if at["project"] != project.name:
            raise Refused(404, "notFound", f"The resource 'projects/{at['project']}' was not found")
        zone, request_id = at.get("zone", ""), request.query.get("requestId", "")
        disk = f"projects/{project.name}/zones/{zone}/disks/{at.get('disk', '')}"
        snapshot = f"projects/{project.name}/global/snapshots/{at.get('snapshot', '')}"
        match action:
            case "compute.disks.list":
                return self.listings.disks(request.query)
            case "compute.instanceGroupManagers.list":
                return self.listings.groups(request.query)
            case "compute.snapshots.list":
                return self.listings.snapshots(request.query)
            case "compute.disks.get":
                return project.find(project.disks, disk)
            case "compute.snapshots.get":
                return project.find(project.snapshots, snapshot)
            case "compute.zoneOperations.get":
                return project.operation(f"projects/{project.name}/zones/{zone}/operations/{at['operation']}")
            case "compute.globalOperations.get":
                return project.operation(f"projects/{project.name}/global/operations/{at['operation']}")
            case "compute.disks.create":
                return project.insert_disk(zone, request.body, request_id)
            case "compute.disks.resize":
                return project.resize(zone, disk, request.body, request_id)
            case "compute.disks.setLabels":
                return project.set_labels(zone, disk, request.body, request_id)
            case "compute.disks.createSnapshot":
                return project.create_snapshot(zone, disk, request.body, request_id)
            case "compute.disks.delete":
                return project.delete(project.disks, zone, disk, request_id)
            case "compute.snapshots.delete":
                return project.delete(project.snapshots, None, snapshot, request_id)
        raise AssertionError(action)


_PROJECT = "/compute/v1/projects/{project}"
_DISK = _PROJECT + "/zones/{zone}/disks/{disk}"
_ACTIONS = {
    ("GET", _PROJECT + "/aggregated/disks"): "compute.disks.list",
    ("GET", _PROJECT + "/aggregated/instanceGroupManagers"): "compute.instanceGroupManagers.list",
    ("GET", _PROJECT + "/global/snapshots"): "compute.snapshots.list",
    ("GET", _PROJECT + "/global/snapshots/{snapshot}"): "compute.snapshots.get",
    ("DELETE", _PROJECT + "/global/snapshots/{snapshot}"): "compute.snapshots.delete",
    ("GET", _PROJECT + "/global/operations/{operation}"): "compute.globalOperations.get",
    ("GET", _PROJECT + "/zones/{zone}/operations/{operation}"): "compute.zoneOperations.get",
    ("POST", _PROJECT + "/zones/{zone}/disks"): "compute.disks.create",
    ("GET", _DISK): "compute.disks.get",
    ("DELETE", _DISK): "compute.disks.delete",
    ("POST", _DISK + "/resize"): "compute.disks.resize",
    ("POST", _DISK + "/setLabels"): "compute.disks.setLabels",
    ("POST", _DISK + "/createSnapshot"): "compute.disks.createSnapshot",
}


async def _send(http: web.Request, status: int, body: bytes, effect: Effect | None) -> web.StreamResponse:
    match effect:
        case Reset():
            return _break(http)
        case Nonsense():
            return web.Response(status=effect.status, body=effect.body, content_type=effect.kind)
        case Cut(declared=declared):
            response = web.StreamResponse(status=status, headers={"Content-Type": "application/json"})
            if declared:
                response.content_length = len(body)
            else:
                response.force_close()
            await response.prepare(http)
            await response.write(body[: len(body) * 2 // 3])
            if declared:
                assert http.transport is not None
                http.transport.close()
            return response
        case Delay(seconds=seconds):
            await asyncio.sleep(seconds)
        case Refuse() | None:
            pass
    return web.Response(status=status, body=body, content_type="application/json")


def _break(http: web.Request) -> web.StreamResponse:
    """With a reset, as a machine that dies does it."""
    assert http.transport is not None
    line = http.transport.get_extra_info("socket")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    http.transport.abort()
    return web.Response()
