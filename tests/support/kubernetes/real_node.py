"""A real node for a control plane of the tests: containerd, kubelet and kube-proxy, so that pods really run.

    with ControlPlane(a) as plane, RealNode(plane, b) as node:     # root, Linux, Debian-like
        node.import_image(archive)                                  # images: images.py, DEV_IMAGE is there
        ... ssh to node.address at a NodePort ...

It lives in network, mount and process namespaces of its own, joined to this machine by one cable: whatever it mounts,
bridges, filters or starts ends with its first process, and several can run at once. Its 8 GPUs are pretended. Nothing
in it reaches further than this machine, so nothing can be downloaded by a pod.

    python tests/support/kubernetes/real_node.py prepare      what `make kube` does for it: packages and base images
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.kubernetes.api import KubeApi, is_ready
from support.kubernetes.binaries import ensure_binaries
from support.kubernetes.control_plane import ControlPlane
from support.kubernetes.images import PAUSE_IMAGE, base_images, ensure_base_images, pause_program
from support.kubernetes.processes import Processes
from support.polling import eventually

_PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
_BUILDER = "buildah"
_BUILDERS_NETWORK = Path("/usr/lib/podman/netavark")
"""Newer builders will not build without it, and only recommend it."""
"""Of the image that it is given; images.py can write one without."""
_CNI_PLUGINS = Path("/usr/lib/cni")
_CGROUPS = Path("/sys/fs/cgroup")
_NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
# What a kubelet sets for the whole machine; put back when it is gone.
_KERNEL_SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
_KERNEL_KEY_SETTINGS = ("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes")


def why_not() -> str | None:
    """Why no real node can run here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a real node needs Linux and root"
    if missing := _missing_packages():
        return f"a real node needs {', '.join(missing)}: `make kube` installs them with apt-get"
    if not all(image.exists() for image in base_images()):
        return "a real node needs its base images: `make kube` builds them"
    if not os.access(_CGROUPS, os.W_OK) or subprocess.run(["unshare", *_NAMESPACES, "true"], check=False).returncode:
        return "a real node needs control groups and namespaces of its own, which root may not make here (a container?)"
    return None


def is_prepared() -> bool:
    """Whether `prepare` has nothing left to do."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return True
    has_builder = shutil.which(_BUILDER) is not None
    return has_builder and not _missing_packages() and all(image.exists() for image in base_images())


def prepare() -> None:
    """Installs and builds what is missing, as far as it can be done here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return
    if missing := _missing_packages():
        _install(*missing)
    if not _missing_packages() and not all(image.exists() for image in base_images()):
        _say("building the real node's base images (a minute, once)")
        ensure_base_images()
    if reason := why_not():
        _say(f"########## THE TESTS ON A REAL NODE WILL BE SKIPPED: {reason} ##########")
    _ensure_builder()


def _ensure_builder() -> None:
    if shutil.which(_BUILDER) is None or (not _BUILDERS_NETWORK.exists() and _is_known(_BUILDERS_NETWORK.name)):
        try:
            _install(_BUILDER)
            if _is_known(_BUILDERS_NETWORK.name):  # older systems have none, and their builder needs none
                _install(_BUILDERS_NETWORK.name)
        except RuntimeError as problem:  # the node does without
            _say(f"{problem}\n########## CANNOT INSTALL {_BUILDER}: tests of images WILL BE SKIPPED ##########")


def _is_known(package: str) -> bool:
    if shutil.which("apt-cache") is None:
        return False
    return subprocess.run(["apt-cache", "show", package], capture_output=True, check=False).returncode == 0


def _install(*packages: str) -> None:
    if shutil.which("apt-get") is None:
        return
    _say(f"installing {', '.join(packages)} for the real node")
    install = ("apt-get", "install", "-y", "-q", "--no-install-recommends", *packages)
    try:
        _run(*install)
    except RuntimeError:  # lists that are old or were never fetched
        _run("apt-get", "update", "-q")
        _run(*install)


def _missing_packages() -> list[str]:
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    return missing + ([] if (_CNI_PLUGINS / "bridge").exists() else ["containernetworking-plugins"])


class RealNode:
    enforces_policies = False
    """The `bridge` plugin knows no NetworkPolicies."""

    def __init__(
        self, plane: ControlPlane, folder: Path, *, name: str = "real-1", gpus: int = 8, gpu_type: str = "h100"
    ) -> None:
        self.name = name
        self.folder = folder
        self.plane = plane
        self._gpus = gpus
        self._labels = {"GpuType": gpu_type, "node.kubernetes.io/instance-type": "p5.48xlarge"}
        self._binaries = ensure_binaries()
        tag = f"{random.randrange(16**6):06x}"
        self.cable = f"gd{tag}"
        self.control_group = f"gpudev-{tag}"
        net, part = random.randrange(256), 4 * random.randrange(64)
        self._here, self.address = f"10.213.{net}.{part + 1}", f"10.213.{net}.{part + 2}"
        self._processes = Processes(folder, last_command=(sys.executable, __file__, "clean", str(folder)))
        self._socket = folder / "containerd.sock"

    def __enter__(self) -> "RealNode":
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._note_what_to_clean()
            self._open_machine()
            self._lay_cable()
            self._start_containerd()
            for image in base_images():
                self.import_image(image)
            self._start_kubelet()
            self._start_proxy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """First whoever would start things again, then the namespaces with all that is in them; the reaper cleans."""
        self._processes.stop_all(signal.SIGKILL)

    def import_image(self, archive: Path) -> None:
        """Pods find it under the name in the archive, with imagePullPolicy Never or IfNotPresent."""
        self._ctr("images", "import", str(archive))

    async def ready(self, api: KubeApi) -> None:
        """Once it has registered: its pretended GPUs, which a device plugin would report."""
        try:
            await api.wait("nodes", self.name, None, is_ready, seconds=180)
        except AssertionError as late:
            self._processes.check()
            raise AssertionError(f"{late}\n{self._processes.log_tail('kubelet')}") from late
        gpus = {"nvidia.com/gpu": str(self._gpus)}
        status = {"status": {"capacity": gpus, "allocatable": gpus}}
        await api.patch("nodes", self.name, status, subresource="status")

    # --- Parts --------------------------------------------------------------------------------------------------

    def _note_what_to_clean(self) -> None:
        names = (*_KERNEL_SETTINGS, *_KERNEL_KEY_SETTINGS)
        settings = {name: Path("/proc/sys", name).read_text().strip() for name in names}
        (self.folder / "clean.json").write_text(json.dumps({"cgroup": self.control_group, "settings": settings}))
        for controller in _cgroup_roots():
            with contextlib.suppress(FileExistsError):
                (controller / self.control_group).mkdir()

    def _open_machine(self) -> None:
        """Its first process: when it ends, the kernel ends all others in there."""
        self._processes.start("machine", "unshare", *_NAMESPACES, str(pause_program()))
        outside = psutil.Process(self._processes.pids()["machine"])

        def first_inside() -> psutil.Process | None:
            self._processes.check()
            return next((child for child in outside.children()[:1] if child.name() == "pause"), None)

        self._first = eventually(first_inside, "the node's namespaces did not open").pid

    def _lay_cable(self) -> None:
        near, far = f"{self.cable}a", f"{self.cable}b"
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        _run("ip", "link", "set", far, "netns", str(self._first))
        _run("ip", "addr", "add", f"{self._here}/30", "dev", near)
        _run("ip", "link", "set", near, "up")
        for command in (
            f"ip addr add {self.address}/30 dev {far}",
            f"ip link set {far} up",
            "ip link set lo up",
            f"ip route add default via {self._here}",
            "sysctl -q -w net.ipv4.ip_forward=1",
        ):
            _run(*self._inside(*command.split()))
        # The API server listens on this machine's own address only; this carries it over the cable.
        self._processes.start(
            "api-line",
            sys.executable,
            str(Path(__file__).with_name("bad_line.py")),
            self._here,
            str(self.plane.port),
        )
        server = f"https://{self._here}:{self.plane.port}"
        self._kubeconfig = self.plane.kubeconfig_with(server=server, called="127.0.0.1")

    def _start_containerd(self) -> None:
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._cni()))
        (self.folder / "containerd.toml").write_text(self._containerd_settings())
        self._start("containerd", "containerd", "--config", str(self.folder / "containerd.toml"))

        def answers() -> bool:
            self._processes.check()
            return self._answers("version")

        eventually(answers, lambda: f"containerd does not answer:\n{self._processes.log_tail('containerd')}")

    def _start_kubelet(self) -> None:
        (self.folder / "resolv.conf").write_text("nameserver 10.96.0.10\n")
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.control_group}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "address": self.address,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.folder / "resolv.conf"),
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "syncFrequency": "10s",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        }
        (self.folder / "kubelet.yaml").write_text(json.dumps(settings))
        self._start(
            "kubelet",
            str(self._binaries / "kubelet"),
            f"--kubeconfig={self._kubeconfig}",
            f"--config={self.folder / 'kubelet.yaml'}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--node-labels={','.join(f'{key}={value}' for key, value in self._labels.items())}",
        )

    def _start_proxy(self) -> None:
        self._start(
            "kube-proxy",
            str(self._binaries / "kube-proxy"),
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={self.name}",
            "--proxy-mode=iptables",
            # These would be set for the whole machine.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )

    def _cni(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "dataDir": str(self.folder / "cni-addresses"),
            "ranges": [[{"subnet": "10.212.0.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "ipMasq": True, "hairpinMode": True}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{**bridge, "ipam": addresses}, ports]}

    def _containerd_settings(self) -> str:
        return f"""\
version = 2
root = "{self.folder}/containerd"
state = "{self.folder}/containerd-state"
oom_score = 0
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{self.folder}/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_CNI_PLUGINS}"
    conf_dir = "{self.folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
"""

    def _start(self, name: str, *command: str) -> None:
        self._processes.start(name, *self._inside(*command))

    def _inside(self, *command: str) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self._first), "--net", "--mount", "--pid", "--", *command)

    def _ctr(self, *arguments: str) -> None:
        _run(*self._inside("ctr", "--address", str(self._socket), "--namespace", "k8s.io", *arguments))

    def _answers(self, *arguments: str) -> bool:
        try:
            self._ctr(*arguments)
        except RuntimeError:
            return False
        return True


def clean(folder: Path) -> None:
    """What outlives the namespaces: unpacked images, empty control groups and the settings of the kernel."""
    for heavy in ("containerd", "containerd-state", "kubelet"):  # nothing is mounted there any more
        shutil.rmtree(folder / heavy, ignore_errors=True)
    noted = json.loads((folder / "clean.json").read_text())
    for name, value in noted["settings"].items():
        Path("/proc/sys", name).write_text(value)
    deadline = time.monotonic() + 10
    groups = [group for root in _cgroup_roots() for group in [root / noted["cgroup"]] if group.exists()]
    while groups and time.monotonic() < deadline:
        for group in groups:
            for path in [*sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True), group]:
                with contextlib.suppress(OSError):  # its last process is still on its way out
                    path.rmdir()
        groups = [group for group in groups if group.exists()]
        time.sleep(0.05 if groups else 0)


def _cgroup_roots() -> list[Path]:
    """One folder where all controllers are in one hierarchy, else one per controller."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _say(text: str) -> None:
    print(f"kube: {text}", file=sys.stderr, flush=True)


def _run(*command: str) -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=quiet)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    if sys.argv[1] == "clean":
        clean(Path(sys.argv[2]))
    else:
        try:
            prepare()
        except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
            _say(str(problem))
            sys.exit(1)
