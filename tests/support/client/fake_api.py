"""A small real HTTP server that speaks the wire models, keeps reservations in memory and can be made to misbehave."""

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gpudev.domain.reservations.lifecycle import TERMINAL, Status
from gpudev.wire import codec
from gpudev.wire.cluster import AvailabilityList, GpuAvailability
from gpudev.wire.queue import ClusterPlan
from gpudev.wire.reservations import (
    CancelRequest,
    ExtendRequest,
    JobEvent,
    JobList,
    JobView,
    PriorityRequest,
    SubmitRequest,
)
from support.client.fake_disks import FakeDisks, NoSuchDisk
from support.client.fake_traffic import Asked, Refusal, Trouble
from support.client.fake_views import HOST_KEY, active, make_job, make_type
from support.polling import eventually

__all__ = ["HOST_KEY", "KEY", "Asked", "FakeApi", "Refusal", "Trouble", "active", "make_job", "make_type"]
KEY = "gpudev_test_key"


class FakeApi:
    def __init__(self) -> None:
        self.keys = {KEY}
        self.jobs: dict[str, JobView] = {}
        self.history: dict[str, list[JobEvent]] = {}
        self.disks = FakeDisks()
        self.asked: list[Asked] = []
        self.submitted: dict[str, JobView] = {}
        self.types: list[GpuAvailability] = [make_type("a100")]
        self.plan: ClusterPlan | None = None
        """None: a server of an earlier version, which has no such thing."""
        self.not_known_yet: set[str] = set()
        """Fields that a server of an earlier version does not send."""
        self.operator_asks = True
        self.scratch_reason: str | None = None
        """Of every submit from now on."""
        self.on_submit: Callable[[FakeApi, JobView], None] = lambda _api, _job: None
        self.troubles: dict[str, deque[Trouble]] = {}
        self.streams_end_after: deque[int] = deque()
        self.line_takes_seconds = 0.0
        """How long each line of a history is on its way."""
        """For each stream to come: cut it after so many reservations."""
        self.told: dict[str, int] = {}
        """The version of each reservation that was last sent over a stream."""
        self.cuts = 0
        self.changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.api = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        with self.changed:
            self.changed.notify_all()

    def add(self, **changes: Any) -> JobView:
        job = make_job(**changes)
        if job.status == Status.ACTIVE and job.node_port is None:
            job = replace(job, **active(job))
        with self.changed:
            self.jobs[job.reservation_id] = job
            self.history[job.reservation_id] = []
            self._note(job, "submitted", "it was submitted")
            self.changed.notify_all()
        return job

    def change(self, reservation_id: str, message: str = "it changed", **changes: Any) -> JobView:
        with self.changed:
            before = self.jobs[reservation_id]
            job = replace(before, version=before.version + 1, **changes)
            self.jobs[reservation_id] = job
            self._note(job, job.status, message)
            self.changed.notify_all()
        return job

    def activate(self, reservation_id: str, **options: Any) -> JobView:
        return self.change(reservation_id, "it is ready", **active(self.jobs[reservation_id], **options))

    def fail_next(self, path_end: str, *troubles: Trouble) -> None:
        """The next requests whose path ends so go wrong, one after another."""
        self.troubles.setdefault(path_end, deque()).extend(troubles)

    def cut_streams(self) -> None:
        """Every stream that is open now ends in the middle."""
        with self.changed:
            self.cuts += 1
            self.changed.notify_all()

    def trouble_for(self, path: str) -> Trouble | None:
        for end, waiting in self.troubles.items():
            if path.endswith(end) and waiting:
                return waiting.popleft()
        return None

    def requests(self, method: str, path_end: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == method and asked.path.endswith(path_end)]

    def wait_for(self, claim: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        eventually(claim, f"never happened: {what}", within=seconds)

    def find(self, text: str) -> JobView:
        digits = text.replace("-", "")
        found = [job for job_id, job in self.jobs.items() if job_id.replace("-", "").startswith(digits)]
        if not found:
            raise Refusal(404, "not_found", f"you have no reservation {text!r}")
        if len(found) > 1:
            shorts = " or ".join(job.reservation_id[:8] for job in found)
            raise Refusal(409, "ambiguous_id", f"{text!r} could be {shorts}; give more digits")
        return found[0]

    def _note(self, job: JobView, kind: str, message: str) -> None:
        history = self.history[job.reservation_id]
        event_id = sum(len(lines) for lines in self.history.values()) + 1
        at = datetime.now(UTC)
        history.append(
            JobEvent(event_id=event_id, at=at, kind=kind, status=job.status, version=job.version, message=message)
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: FakeApi

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is nothing to shout about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        api = self.server.api
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = Asked(method, parts.path, parse_qs(parts.query), dict(self.headers.items()), body)
        api.asked.append(asked)
        trouble = api.trouble_for(parts.path) or Trouble()
        if trouble.cut_before:
            self._cut()
            return
        if trouble.answer is not None:
            status, kind, data = trouble.answer
            self._answer(status, kind, data, trouble.headers)
            return
        try:
            self._authenticate()
            value, status = self._carry_out(api, asked)
        except Refusal as refusal:
            problem = json.dumps(codec.encode_model(refusal.problem)).encode()
            self._answer(refusal.problem.status, "application/problem+json", problem)
            return
        if trouble.cut_after:
            self._cut()
        elif value is not None:
            self._answer(status, "application/json", json.dumps(self._told(value)).encode())

    def _told(self, value: Any) -> Any:
        return _without(codec.encode_model(value), self.server.api.not_known_yet)

    def _authenticate(self) -> None:
        scheme, _, key = self.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or key not in self.server.api.keys:
            raise Refusal(401, "unauthenticated", "malformed API key")

    def _carry_out(self, api: FakeApi, asked: Asked) -> tuple[Any, int]:
        segments = [unquote(segment) for segment in asked.path.split("/")[1:]]
        match [asked.method, *segments]:
            case ["POST", "v1", "jobs", "submit"]:
                return self._submit(api, asked), 202
            case ["GET", "v1", "jobs"]:
                return _list(api, asked.query), 200
            case ["GET", "v1", "jobs", job_id]:
                return api.find(job_id), 200
            case ["POST", "v1", "jobs", job_id, "cancel"]:
                job = api.find(job_id)
                code = _strict(CancelRequest, asked.json).exit_code if asked.body else None
                if code is not None and not 0 <= code <= 255:
                    raise Refusal(422, "invalid", f"invalid exit_code {code}", "exit_code")
                if job.status in (Status.EXPIRED, Status.FAILED):
                    raise Refusal(409, "conflict", f"it is {job.status} already")
                now = datetime.now(UTC)
                return api.change(
                    job.reservation_id,
                    "cancelled",
                    status="cancelled",
                    cancelled_at=now,
                    reservation_ended=now,
                    exit_code=job.exit_code if code is None else code,
                ), 200
            case ["POST", "v1", "jobs", job_id, "extend"]:
                job = api.find(job_id)
                ask = _strict(ExtendRequest, asked.json)
                if job.expires_at is None:
                    raise Refusal(409, "conflict", "only an active reservation can be extended")
                until = job.expires_at + timedelta(hours=ask.extension_hours)
                return api.change(job.reservation_id, "extended", expires_at=until), 200
            case ["POST", "v1", "jobs", job_id, "priority"]:
                if not api.operator_asks:
                    raise Refusal(403, "forbidden", "only operators may set priorities")
                priority = _strict(PriorityRequest, asked.json).priority
                return api.change(api.find(job_id).reservation_id, "priority set", priority=priority), 200
            case ["GET", "v1", "cluster", "plan"] if api.plan is not None:
                return _planned(api.plan, asked.query), 200
            case ["GET", "v1", "jobs", job_id, "events"]:
                self._stream(api, api.find(job_id).reservation_id)
                return None, 200
            case [_, "v1", "disks", *rest]:
                return self._disks(api, asked, rest)
            case ["GET", "v1", "gpu", "availability"]:
                return AvailabilityList(gpu_types=api.types), 200
            case _:
                raise Refusal(404, "not_found", f"there is no {asked.path!r} here")

    def _disks(self, api: FakeApi, asked: Asked, path: list[str]) -> tuple[Any, int]:
        try:
            if asked.method == "GET":
                return api.disks.look(path, asked.query), 200
            body = asked.json if asked.body else {}
            return api.disks.act(asked.method, path, body, self.headers["Idempotency-Key"], _strict), 202
        except NoSuchDisk as error:
            raise Refusal(404, "not_found", str(error)) from error

    def _submit(self, api: FakeApi, asked: Asked) -> JobView:
        ask = _strict(SubmitRequest, asked.json)
        key = self.headers["Idempotency-Key"]
        assert key, "the client always sends one"
        if key in api.submitted:
            return api.submitted[key]
        if not ask.github_user and not ask.ssh_public_keys:
            raise Refusal(422, "invalid", "no public key could log in", "ssh_public_keys")
        named = ask.gpu_type or self._only_type(api, cpu=ask.gpu_count == 0)
        if named not in {one.gpu_type for one in api.types}:
            raise Refusal(422, "invalid", f"GPU type {named!r} is unknown", "gpu_type")
        if ask.gpu_count not in (0, 1, 2, 4, 8):
            raise Refusal(
                422, "invalid", f"invalid GPU count {ask.gpu_count} for {named}; ask for 1, 2, 4, 8", "gpu_count"
            )
        job = api.add(
            gpu_type=named,
            gpu_count=ask.gpu_count,
            duration_hours=8.0 if ask.duration_hours is None else ask.duration_hours,
            github_user=ask.github_user,
            name=ask.name,
            image=ask.image,
            disk_name=ask.disk_name,
            command=ask.command,
            scratch_reason=api.scratch_reason,
        )
        api.submitted[key] = job
        threading.Thread(target=api.on_submit, args=(api, job), daemon=True).start()
        return job

    def _only_type(self, api: FakeApi, *, cpu: bool) -> str:
        names = [one.gpu_type for one in api.types if one.total_cluster_gpus and (one.max_per_node == 0) == cpu]
        if len(names) == 1:
            return names[0]
        raise Refusal(422, "invalid", f"several GPU types have nodes, so name one of {', '.join(names)}", "gpu_type")

    def _stream(self, api: FakeApi, reservation_id: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        limit = api.streams_end_after.popleft() if api.streams_end_after else None
        after = int(self.headers.get("Last-Event-ID") or 0)
        told, sent, cuts = None, 0, api.cuts
        while True:
            with api.changed:
                job = api.jobs[reservation_id]
                news = [event for event in api.history[reservation_id] if event.event_id > after]
            if told is None:
                self._tell(api, job)
                sent += 1
            for event in news:
                after = event.event_id
                time.sleep(api.line_takes_seconds)
                self._event("event", event, event.event_id)
            if told is not None and job != told:
                self._tell(api, job)
                sent += 1
            told = job
            if cuts != api.cuts or (limit is not None and sent >= limit):
                self._cut()
                return
            if job.status in TERMINAL:
                self.wfile.write(b"0\r\n\r\n")
                return
            with api.changed:
                if api.jobs[reservation_id] == told and cuts == api.cuts and not api.changed.wait(5):
                    self._chunk(b": still here\n\n")

    def _tell(self, api: FakeApi, job: JobView) -> None:
        self._event("job", job)
        api.told[job.reservation_id] = job.version

    def _event(self, kind: str, value: Any, event_id: int | None = None) -> None:
        identity = f"id: {event_id}\n" if event_id is not None else ""
        self._chunk(f"event: {kind}\n{identity}data: {json.dumps(self._told(value))}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _answer(self, status: int, kind: str, data: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def _list(api: FakeApi, query: dict[str, list[str]]) -> JobList:
    known = {"status", "gpu_type", "created_after", "created_before", "cursor", "limit"}
    assert set(query) <= known, f"the API does not know {set(query) - known}"
    limit = int(query.get("limit", ["50"])[0])
    if not 1 <= limit <= 200:
        raise Refusal(422, "invalid", "limit must be between 1 and 200", "limit")
    jobs = [job for job in reversed(api.jobs.values()) if job.status in query.get("status", [job.status])]
    jobs = [job for job in jobs if job.gpu_type in query.get("gpu_type", [job.gpu_type])]
    begin = int(query.get("cursor", ["0"])[0])
    more = str(begin + limit) if len(jobs) > begin + limit else None
    return JobList(jobs=jobs[begin : begin + limit], next_cursor=more)


def _planned(plan: ClusterPlan, query: dict[str, list[str]]) -> ClusterPlan:
    assert set(query) <= {"hours", "gpu_type"}
    hours = float(query["hours"][0])
    if not 0 < hours <= 72:
        raise Refusal(422, "invalid", "hours: should be at most 72", "hours")
    types = [one for one in plan.gpu_types if one.gpu_type in query.get("gpu_type", [one.gpu_type])]
    return replace(plan, until=plan.begins + timedelta(hours=hours), gpu_types=types)


def _without(data: Any, names: set[str]) -> Any:
    if isinstance(data, dict):
        return {name: _without(value, names) for name, value in data.items() if name not in names}
    return [_without(each, names) for each in data] if isinstance(data, list) else data


def _strict(model: type[Any], data: Any) -> Any:
    """As the API does it: unknown fields are refused."""
    unknown = set(data) - {field.name for field in fields(model)}
    if unknown:
        raise Refusal(422, "invalid", f"{', '.join(sorted(unknown))} is not known here", min(unknown))
    missing = [f.name for f in fields(model) if f.default is MISSING and f.name not in data]
    if missing:
        raise Refusal(422, "invalid", f"{missing[0]} is missing", missing[0])
    return codec.decode_model(model, data)
