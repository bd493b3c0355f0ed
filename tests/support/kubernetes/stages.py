"""How pods on fake nodes live and die: the stages KWOK plays, written as KWOK wants them.

A pod that has been placed is running and ready at once, and gone when it is deleted. It plays something else when its
first container's image is `play.test/PLAY`, or when it is annotated `gpu-dev.test/play: PLAY` (also while it runs; the
annotation comes first). PLAY is one of

    slow, slow:3s              pulling, init containers done, started, ready: each step takes 500 ms, or what is said
    never-ready                runs, but its readiness probe never passes
    crash, crash:3             its containers end with exit code 1, or the one said
    oom                        its containers are OOMKilled (137)
    init-crash, init-crash:4   its init containers end with exit code 1, or the one said
    pull-error                 ErrImagePull, then ImagePullBackOff
    evicted                    the kubelet evicted it for lack of memory
    stuck                      it stays as it was; deleted, it stays Terminating: its node is lost

What ends does so as the restart policy says: with Never the pod fails, else its containers wait in CrashLoopBackOff.
"""

import json
from pathlib import Path
from textwrap import indent
from typing import Any

Expression = tuple[str, str, list[str]]

# jq: what a pod is to play and how, by its annotation, else by its image.
_SAID = (
    '.metadata.annotations["gpu-dev.test/play"]'
    ' // (.spec.containers[0].image | select(startswith("play.test/")) | ltrimstr("play.test/")) | split(":")'
)
_INITIALIZED = '.status.conditions[]? | select(.type == "Initialized") | .status'
_READY = '.status.conditions[]? | select(.type == "Ready") | .status'
_WAITS_FOR = ".status.containerStatuses[]? | .state.waiting.reason"
_ENDED = ".status.{}[]? | (.state.terminated // .lastState.terminated) | .reason"
_LIVES: Expression = (".metadata.deletionTimestamp", "DoesNotExist", [])
_PENDING: Expression = (".status.phase", "In", ["Pending"])
_NOT_ENDED: Expression = (".status.phase", "In", ["Pending", "Running"])


def write_stages(path: Path, *, log: Path, faults: bool) -> Path:
    """`faults=False`: only the ordinary life, which costs KWOK the least. Every container has logged what is in `log`,
    and a command in one runs on this machine."""
    documents = [_node(), *_ordinary(), *(_faults() if faults else []), *_logs_and_exec(log)]
    path.write_text("\n---\n".join(json.dumps(document) for document in documents))  # JSON is YAML
    return path


def _ordinary() -> list[dict[str, Any]]:
    plays_nothing: Expression = (_SAID, "DoesNotExist", [])
    deleted: Expression = (".metadata.deletionTimestamp", "Exists", [])
    not_stuck: Expression = (f"{_SAID}[0]", "NotIn", ["stuck"])
    running = _NOW + _PLACE + _POD_IP + "phase: Running\n" + _conditions("True") + _INIT_DONE + _RUNNING_READY
    return [
        _stage("ready", [_LIVES, _PENDING, plays_nothing], running),
        _stage("gone", [deleted, not_stuck], None),
    ]


def _faults() -> list[dict[str, Any]]:
    return [*_slow(), *_failing_pulls(), *_ends(), _never_ready(), _evicted()]


def _slow() -> list[dict[str, Any]]:
    def step(name: str, when: list[Expression], template: str, event: str | None = None) -> dict[str, Any]:
        return _play("slow", name, when, _NOW + template, delayed=name != "pulling", event=event)

    pulling = _PLACE + _conditions("False", "False") + _waiting("initContainer", "PodInitializing")
    initialised = _POD_IP + _conditions("False") + _INIT_DONE + _waiting("container", "ContainerCreating")
    started = "phase: Running\n" + _containers("container", _RUNNING, started=True)
    has_begun: Expression = (".status.containerStatuses", "Exists", [])
    has_not_begun: Expression = (".status.containerStatuses", "DoesNotExist", [])
    is_running: Expression = (".status.phase", "In", ["Running"])
    return [
        step("pulling", [_PENDING, has_not_begun], pulling + _waiting("container", "PodInitializing"), "Pulling"),
        step("initialised", [_PENDING, has_begun, (_INITIALIZED, "NotIn", ["True"])], initialised, "Pulled"),
        step("started", [_PENDING, (_INITIALIZED, "In", ["True"])], started, "Started"),
        step("at-last", [is_running, (_READY, "NotIn", ["True"])], _conditions("True") + _RUNNING_READY),
    ]


def _never_ready() -> dict[str, Any]:
    template = _PLACE + _POD_IP + "phase: Running\n" + _conditions("False") + _INIT_DONE
    when = [_NOT_ENDED, (_READY, "NotIn", ["False"])]
    started = _containers("container", _RUNNING, started=True)
    return _play("never-ready", "starts", when, _NOW + template + started, event="Unhealthy")


def _failing_pulls() -> list[dict[str, Any]]:
    fails = _PLACE + _POD_IP + _conditions("False") + _INIT_DONE
    fails += _waiting("container", "ErrImagePull", "failed to pull and unpack image %s: not found")
    backs_off = _waiting("container", "ImagePullBackOff", "Back-off pulling image %s")
    not_tried: Expression = (_WAITS_FOR, "NotIn", ["ErrImagePull", "ImagePullBackOff"])
    tried: Expression = (_WAITS_FOR, "In", ["ErrImagePull"])
    return [
        _play("pull-error", "fails", [_PENDING, not_tried], _NOW + fails, event="Failed"),
        _play("pull-error", "backs-off", [_PENDING, tried], _NOW + backs_off, delayed=True, event="BackOff"),
    ]


def _ends() -> list[dict[str, Any]]:
    ends = _PLACE + _POD_IP + _phase("Running") + _conditions("False") + _INIT_DONE + _ended("container")
    init_ends = _PLACE + _POD_IP + _phase("Pending") + _conditions("False", "False") + _ended("initContainer")
    init_ends += _waiting("container", "PodInitializing")
    not_yet = [_NOT_ENDED, (_ENDED.format("containerStatuses"), "DoesNotExist", [])]
    init_not_yet = [_PENDING, (_ENDED.format("initContainerStatuses"), "DoesNotExist", [])]
    return [
        _play("crash", "ends", not_yet, _NOW + _HOW_IT_ENDS + ends),
        _play("oom", "ends", not_yet, _NOW + _HOW_IT_ENDS + ends),
        _play("init-crash", "ends", init_not_yet, _NOW + _HOW_IT_ENDS + init_ends),
    ]


def _evicted() -> dict[str, Any]:
    killed = "terminated: {exitCode: 137, reason: Error, startedAt: {{ $now }}, finishedAt: {{ $now }}}\n"
    template = "phase: Failed\nreason: Evicted\nmessage: 'The node was low on resource: memory.'\n"
    template += _PLACE + _conditions("False") + _containers("container", killed)
    return _play("evicted", "ends", [_NOT_ENDED], _NOW + template, event="Evicted")


# --- The status of a pod, in pieces -----------------------------------------------------------------------------

_NOW = "{{ $now := Now | Quote }}\n"
_PLACE = """\
startTime: {{ or .status.startTime Now | Quote }}
{{ with NodeIPWith .spec.nodeName }}
hostIP: {{ . | Quote }}
hostIPs: [{ip: {{ . | Quote }}}]
{{ end }}
"""
# Asked twice, KWOK would hand out a second address.
_POD_IP = """\
{{ if not .status.podIP }}
{{ with PodIPWith .spec.nodeName (or .spec.hostNetwork false) .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ . | Quote }}
podIPs: [{ip: {{ . | Quote }}}]
{{ end }}
{{ end }}
"""
_HOW_IT_ENDS = """\
{{ $again := ne .spec.restartPolicy "Never" }}
{{ $said := or (get (or .metadata.annotations dict) "gpu-dev.test/play") (index .spec.containers 0).image }}
{{ $code := regexFind ":[0-9]+$" $said | trimPrefix ":" | default "1" }}
{{ $reason := "Error" }}
{{ if hasSuffix "oom" $said }}{{ $reason = "OOMKilled" }}{{ $code = "137" }}{{ end }}
{{ $ended := printf "{exitCode: %s, reason: %s, startedAt: %s, finishedAt: %s}" $code $reason $now $now }}
"""


def _phase(meanwhile: str) -> str:
    return f"phase: {{{{ if $again }}}}{meanwhile}{{{{ else }}}}Failed{{{{ end }}}}\n"


def _conditions(ready: str, initialized: str = "True") -> str:
    states = {"Initialized": initialized, "PodReadyToStartContainers": initialized}
    states |= {"ContainersReady": ready, "Ready": ready}
    return "conditions:\n" + "".join(
        f'- {{type: {name}, status: "{status}", lastTransitionTime: {{{{ $now }}}}}}\n'
        for name, status in states.items()
    )


def _containers(
    kind: str, state: str, *, ready: bool = False, started: bool = False, restarts: str = "0", last_state: str = ""
) -> str:
    """One status per `container` or `initContainer` of the pod; inside, `.` is what the pod asked for."""
    return f"""\
{kind}Statuses:
{{{{ range .spec.{kind}s }}}}
- name: {{{{ .name | Quote }}}}
  image: {{{{ .image | Quote }}}}
  imageID: ""
  ready: {str(ready).lower()}
  started: {str(started).lower()}
  restartCount: {restarts}
  state:
{indent(state, "    ")}{indent(last_state, "  ")}{{{{ end }}}}
"""


def _waiting(kind: str, reason: str, message: str = "") -> str:
    told = f'  message: {{{{ printf "{message}" .image | Quote }}}}\n' if message else ""
    return _containers(kind, f"waiting:\n  reason: {reason}\n{told}")


def _ended(kind: str) -> str:
    waits = "waiting: {reason: CrashLoopBackOff, message: back-off 10s restarting failed container}"
    state = f"{{{{ if $again }}}}\n{waits}\n{{{{ else }}}}\nterminated: {{{{ $ended }}}}\n{{{{ end }}}}\n"
    last = "{{ if $again }}\nlastState: {terminated: {{ $ended }}}\n{{ end }}\n"
    return _containers(kind, state, restarts="{{ if $again }}1{{ else }}0{{ end }}", last_state=last)


_COMPLETED = "terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now }}, finishedAt: {{ $now }}}\n"
_RUNNING = "running: {startedAt: {{ $now }}}\n"
_INIT_DONE = _containers("initContainer", _COMPLETED, ready=True)
_RUNNING_READY = _containers("container", _RUNNING, ready=True, started=True)


# --- KWOK's documents -------------------------------------------------------------------------------------------


def _play(
    play: str, name: str, when: list[Expression], template: str, *, delayed: bool = False, event: str | None = None
) -> dict[str, Any]:
    plays: Expression = (f"{_SAID}[0]", "In", [play])
    stage = _stage(f"{play}-{name}", [_LIVES, plays, *when], template)
    if delayed:
        said = {"expressionFrom": f"{_SAID}[1] // empty"}
        stage["spec"]["delay"] = {"durationMilliseconds": 500, "durationFrom": said}
    if event is not None:
        kind = "Normal" if event in ("Pulling", "Pulled", "Started", "BackOff") else "Warning"
        stage["spec"]["next"]["event"] = {"type": kind, "reason": event, "message": f"played by a fake node: {event}"}
    return stage


def _stage(name: str, when: list[Expression], template: str | None, kind: str = "Pod") -> dict[str, Any]:
    """Without a template: the object is taken away."""
    expressions = [
        {"key": key, "operator": operator, **({"values": values} if values else {})} for key, operator, values in when
    ]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": f"{kind.lower()}-{name}"},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": expressions},
            "next": {"delete": True} if template is None else {"statusTemplate": template},
        },
    }


def _node() -> dict[str, Any]:
    """Tests write a node's status themselves (fake_nodes.py); KWOK only has to know that it plays nodes."""
    ready = (
        "conditions:\n- {type: Ready, status: 'True', reason: KubeletReady, lastTransitionTime: {{ Now | Quote }}}\n"
    )
    return _stage("initialise", [(".status.conditions", "DoesNotExist", [])], ready, kind="Node")


def _logs_and_exec(log: Path) -> list[dict[str, Any]]:
    def document(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "all"}, "spec": spec}

    return [
        document("ClusterLogs", {"logs": [{"logsFile": str(log), "follow": False}]}),
        document("ClusterExec", {"execs": [{"local": {}}]}),
    ]
