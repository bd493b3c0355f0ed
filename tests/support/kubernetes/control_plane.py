"""A real Kubernetes control plane of one's own: etcd, API server, controllers, scheduler, and KWOK as the nodes.

    with ControlPlane(tmp_path / "kube") as plane:          # ready in about 4 s, 0.6 GB; also `async with`
        api = await KubeApi.connect(plane.kubeconfig)       # api.py
        nodes = FakeNodes(api, plane.node_mark)             # fake_nodes.py
        await nodes.add("n1", gpus=8, gpu_type="h100")
        ...
        plane.kill_apiserver(); plane.start_apiserver()     # same address, same data

Everyone is admin by `plane.kubeconfig`; RBAC is on, so service-account tokens (`KubeApi.service_account_token`) and
`plane.kubeconfig_with(token=..., server=...)` show what others may do. Logs lie in the folder as NAME.log. How fake
nodes play pods, and how a test makes one crash or hang, is written in stages.py.
"""

import asyncio
import base64
import json
import os
import random
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from support.kubernetes.binaries import ensure_binaries
from support.kubernetes.processes import Processes
from support.kubernetes.stages import write_stages
from support.polling import eventually
from support.ports import free_port

ADMIN_TOKEN = "admin-of-the-tests"
_PATIENCE_SECONDS = 60.0


class ControlPlane:
    """`faults=False` leaves only the fast stage: what benchmarks want. `audited`: what service accounts asked for, and
    what they were answered, is in `audit_log`, one JSON object a line."""

    def __init__(self, folder: Path, *, faults: bool = True, audited: bool = False) -> None:
        self.folder = folder
        self.audit_log = folder / "audit.log"
        self._audited = audited
        self.kubeconfig = folder / "kubeconfig"
        self.node_mark = "fake"
        self._binaries = ensure_binaries()
        self._faults = faults
        self._processes = Processes(folder)
        self._etcd_port, self._peer_port, self.port, self.kwok_port = (free_port() for _ in range(4))
        self.url = f"https://127.0.0.1:{self.port}"

    def start(self) -> "ControlPlane":
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start_etcd()
            self.start_apiserver()
            self._write_kubeconfig(self.kubeconfig, self.url, ADMIN_TOKEN)
            self._start_controllers()
            # No heartbeats: a node is lost when a test says so, and a thousand of them cost nothing.
            start_kwok(self, self._processes, self._binaries, faults=self._faults, lease_seconds=0)
            self._wait_until("the namespace default has its service account", self._has_default_account)
            self._wait_until("KWOK answers", self._kwok_answers)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Killed: nothing here is kept, and an API server takes seconds to say goodbye to its watchers."""
        self._processes.stop_all(signal.SIGKILL)

    def __enter__(self) -> "ControlPlane":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> "ControlPlane":
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    # --- Faults -------------------------------------------------------------------------------------------------

    def kill_apiserver(self) -> None:
        """At once and without farewell: open requests and watches break."""
        self._processes.stop("apiserver", signal.SIGKILL)

    def start_apiserver(self) -> None:
        """Answers when it is ready again: same address, certificate and data."""
        key = self._ensure_signing_key()
        (self.folder / "tokens.csv").write_text(f"{ADMIN_TOKEN},admin,admin,system:masters\n")
        self._run(
            "apiserver",
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--cert-dir=certificates",
            "--token-auth-file=tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true",
            "--max-requests-inflight=800",
            "--max-mutating-requests-inflight=400",
            # Fake nodes name the local machine here, where KWOK answers for them; real nodes have an address only.
            "--kubelet-preferred-address-types=InternalDNS,InternalIP",
            *(self._audit_options() if self._audited else ()),
        )
        self._wait_until("the API server is ready", lambda: self._get("/readyz") == b"ok")

    def _audit_options(self) -> tuple[str, ...]:
        accounts = {"level": "Metadata", "userGroups": ["system:serviceaccounts"], "omitStages": ["RequestReceived"]}
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [accounts, {"level": "None"}]}
        (self.folder / "audit-policy.json").write_text(json.dumps(policy))
        return ("--audit-policy-file=audit-policy.json", f"--audit-log-path={self.audit_log}")

    def restart_apiserver(self) -> None:
        self.kill_apiserver()
        self.start_apiserver()

    def kill_scheduler(self) -> None:
        """Pods that are created stay where nobody has put them."""
        self._processes.stop("scheduler", signal.SIGKILL)

    def start_scheduler(self) -> None:
        """It knows all there is before it places anybody."""
        options = ("--kube-api-qps=500", "--kube-api-burst=1000")
        self._run("scheduler", "kube-scheduler", *self._common_options(), *options)

    def forget_history(self) -> None:
        """Old resource versions are gone: whoever resumes a watch from one is told 410 and must list again."""
        etcd = f"http://127.0.0.1:{self._etcd_port}/v3/kv"
        header = json.loads(_post(f"{etcd}/range", {"key": base64.b64encode(b"x").decode()}))["header"]
        _post(f"{etcd}/compaction", {"revision": header["revision"]})
        self.restart_apiserver()

    def set_pod_log(self, text: str) -> None:
        """What every container on a fake node has logged from now on, in the form container runtimes keep."""
        lines = (f"2026-01-01T00:00:00.000000000Z stdout F {line}\n" for line in text.splitlines())
        (self.folder / "pod.log").write_text("".join(lines))

    def kubeconfig_with(
        self, *, token: str = ADMIN_TOKEN, server: str | None = None, called: str | None = None
    ) -> Path:
        """Another kubeconfig for the same cluster: somebody else's token, or the address of a proxy before it.
        `called` is the name in the certificate, where it is not that address."""
        path = self.folder / f"kubeconfig-{random.randrange(16**8):08x}"
        self._write_kubeconfig(path, server or self.url, token, called)
        return path

    @property
    def certificate_authority(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    def pids(self) -> dict[str, int]:
        return self._processes.pids()

    # --- Parts --------------------------------------------------------------------------------------------------

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._run(
            "etcd",
            "etcd",
            "--data-dir=etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def _start_controllers(self) -> None:
        """Their default request rates would make them the bottleneck of every benchmark."""
        self._run(
            "controller-manager",
            "kube-controller-manager",
            *self._common_options(),
            f"--service-account-private-key-file={self._ensure_signing_key()}",
            f"--root-ca-file={self.certificate_authority}",
            "--node-monitor-grace-period=24h",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        )
        self.start_scheduler()

    def _common_options(self) -> tuple[str, ...]:
        return (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0")

    def _run(self, name: str, program: str, *options: str) -> None:
        # A larger heap for a tenth less of computing, most of all while it starts: there is one such plane per worker.
        environment = {**os.environ, "GOGC": "300"}
        self._processes.start(name, str(self._binaries / program), *options, environment=environment)

    def _ensure_signing_key(self) -> Path:
        path = self.folder / "service-accounts.key"
        if not path.exists():
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            form = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
            path.write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
        return path

    def _write_kubeconfig(self, path: Path, server: str, token: str, called: str | None = None) -> None:
        authority = base64.b64encode(self.certificate_authority.read_bytes()).decode()
        cluster = {"server": server, "certificate-authority-data": authority}
        if called is not None:
            cluster["tls-server-name"] = called
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(document))  # JSON is YAML

    def _has_default_account(self) -> bool:
        """Made by the controller manager; no pod is admitted before."""
        return self._get("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def _kwok_answers(self) -> bool:
        return _get(f"http://127.0.0.1:{self.kwok_port}/healthz") is not None

    def _get(self, path: str) -> bytes | None:
        return _get(f"{self.url}{path}", Authorization=f"Bearer {ADMIN_TOKEN}")

    def _wait_until(self, what: str, is_true: Callable[[], bool]) -> None:
        def is_so() -> bool:
            if is_true():
                return True
            self._processes.check()
            return False

        failure = f"not within {_PATIENCE_SECONDS:.0f} s: {what} (logs in {self.folder})"
        eventually(is_so, failure, within=_PATIENCE_SECONDS)


class ExistingCluster:
    """A cluster somebody else runs. Only KWOK is ours, for nodes that carry this run's mark."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder
        self.kubeconfig = kubeconfig
        self.node_mark = f"gpu-dev-tests-{random.randrange(16**8):08x}"
        self.kwok_port = free_port()
        self._processes = Processes(folder)

    def __enter__(self) -> "ExistingCluster":
        self.folder.mkdir(parents=True, exist_ok=True)
        # Here somebody does watch heartbeats.
        start_kwok(self, self._processes, ensure_binaries(), lease_seconds=40)
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.stop_all()


class Cluster(Protocol):
    """What tests need of either."""

    folder: Path
    kubeconfig: Path
    node_mark: str
    kwok_port: int


def start_kwok(
    cluster: Cluster, processes: Processes, binaries: Path, *, faults: bool = True, lease_seconds: int
) -> None:
    """KWOK plays the kubelet of every node that carries our mark."""
    log = cluster.folder / "pod.log"
    log.touch()
    stages = write_stages(cluster.folder / "stages.yaml", log=log, faults=faults)
    processes.start(
        "kwok",
        str(binaries / "kwok"),
        f"--kubeconfig={cluster.kubeconfig}",
        f"--config={stages}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node={cluster.node_mark}",
        f"--node-lease-duration-seconds={lease_seconds}",
        "--cidr=10.128.0.0/9",
        f"--server-address=127.0.0.1:{cluster.kwok_port}",
    )


def _get(url: str, **headers: str) -> bytes | None:
    """The body, or None while nobody answers well. The certificate may not have been written yet, so none is asked."""
    try:
        with _directly().open(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return None
    except OSError:
        return None


def _post(url: str, document: dict[str, Any]) -> bytes:
    with _directly().open(urllib.request.Request(url, json.dumps(document).encode()), timeout=60) as answer:
        body: bytes = answer.read()
        return body


def _directly() -> urllib.request.OpenerDirector:
    """Whatever proxy the environment names, the way to this machine is not through it."""
    https = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
