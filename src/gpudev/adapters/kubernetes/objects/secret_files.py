"""Files of a dev server's Secret: keys, environment, banner, hosts, personalization. Pure.

All of it is data for our own program in the pod; none of it becomes script text.

One Secret serves all members. Files that differ between members have one key per rank, and each pod mounts its own
under the plain file name.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpudev.adapters.key_pairs import KeyPair
from gpudev.adapters.kubernetes.objects.labels import gang_service_name, member_name
from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import short_id
from gpudev.domain.sessions.addons import JupyterSpec
from gpudev.ports.cluster import ServerSpec

HOST_KEY = "host_key"
MESH_KEY = "mesh_key"
AUTHORIZED_KEYS = "authorized_keys"
ENVIRONMENT = "environment"
BANNER = "greeting"
HOSTS = "hosts"
JUPYTER = "jupyter"
PERSONAL_VARIABLES = "own_variables"
DOTFILES = "dotfiles"
STARTUP_SCRIPT = "startup_script"
MASTER_PORT = 29500
HOME = "/home/dev"
WORKSPACE = "/workspace"

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE_ENDS = re.compile(r"[\x00\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """Generated once per reservation and kept, so that a restarted dev server has the same host key."""

    host: KeyPair
    mesh: KeyPair | None
    """For SSH among the members of a gang; None: there is one member."""


def build_secret_data(spec: ServerSpec, keys: ServerKeys, home_is_kept: bool) -> dict[str, str]:
    """The hosts file stays empty: the members' addresses are not known before they run."""
    files = {
        HOST_KEY: keys.host.private,
        AUTHORIZED_KEYS: format_authorized_keys(spec.ssh_public_keys, keys),
        JUPYTER: format_jupyter_spec(spec.jupyter),
        HOSTS: "",
    }
    files |= _personalization_files(spec)
    if keys.mesh is not None:
        files[MESH_KEY] = keys.mesh.private
    for share in spec.shares:
        files[f"{ENVIRONMENT}-{share.rank}"] = _format_environment(spec, share)
        files[f"{BANNER}-{share.rank}"] = _format_banner(spec, share, home_is_kept)
    return {name: encode_secret_value(text) for name, text in files.items()}


def secret_mount_items(spec: ServerSpec, rank: int) -> list[dict[str, Any]]:
    """Which keys of the Secret one member mounts, and under which file names."""
    shared = [
        HOST_KEY,
        AUTHORIZED_KEYS,
        HOSTS,
        *_personalization_files(spec),
        *([MESH_KEY] if len(spec.shares) > 1 else []),
    ]
    per_rank = [{"key": f"{name}-{rank}", "path": name} for name in (ENVIRONMENT, BANNER)]
    if rank == 0:  # where people log in
        shared.append(JUPYTER)
    return [{"key": name, "path": name} for name in shared] + per_rank


def build_environment(spec: ServerSpec, share: NodeShare) -> dict[str, str]:
    """Our environment variables of all sessions. They override the owner's own variables."""
    values = {
        "GPU_DEV_RESERVATION_ID": str(spec.reservation_id),
        "GPU_DEV_POD_NAME": spec.pod_name,
        "GPU_DEV_NODE": share.node,
        "GPU_DEV_GPU_TYPE": spec.gpu_type,
        "GPU_DEV_GPU_COUNT": str(spec.gpu_count),
        "GPU_DEV_USER": spec.username,
        "WORKSPACE": WORKSPACE,
    }
    if spec.expires_at is not None:
        values["GPU_DEV_EXPIRES_AT"] = spec.expires_at.isoformat()
    if spec.name is not None:
        values["GPU_DEV_NAME"] = spec.name
    if len(spec.shares) > 1:
        values |= _gang_environment(spec, share)
    return {name: to_one_line(value) for name, value in values.items() if _is_variable_name(name)}


def member_hostname(name: str, rank: int) -> str:
    """The name under which the other members reach this one. The cluster's DNS resolves it through the headless
    Service, whatever the cluster's domain is; so does the hosts file."""
    return f"{member_name(name, rank)}.{gang_service_name(name)}"


def format_hosts(name: str, addresses: Mapping[int, str]) -> str:
    """Lines for /etc/hosts, by rank."""
    return "".join(
        f"{address}\t{member_hostname(name, rank)}\t{member_name(name, rank)}\n"
        for rank, address in sorted(addresses.items())
    )


def encode_secret_value(text: str) -> str:
    """Base64, as in a Secret. Invalid characters (a lone surrogate) are replaced: they must not stop a launch."""
    return base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")


def decode_secret_value(data: str) -> str:
    return base64.b64decode(data).decode("utf-8", "replace")


def to_one_line(text: str) -> str:
    """These files are read line by line; a line break in a value would start another entry."""
    return _LINE_ENDS.sub(" ", text)


def _gang_environment(spec: ServerSpec, share: NodeShare) -> dict[str, str]:
    hosts = [member_hostname(spec.pod_name, other.rank) for other in spec.shares]
    return {
        "RANK": str(share.rank),
        "NODE_RANK": str(share.rank),
        "WORLD_SIZE": str(len(spec.shares)),
        "MASTER_ADDR": member_hostname(spec.pod_name, 0),
        "MASTER_PORT": str(MASTER_PORT),
        "GPU_DEV_NODE_COUNT": str(len(spec.shares)),
        "GPU_DEV_GPUS_PER_NODE": str(share.units),
        "GPU_DEV_HOSTS": ",".join(hosts),
    }


def _personalization_files(spec: ServerSpec) -> dict[str, str]:
    """The owner's variables, dotfiles and start-up script. Variables end with a NUL, because a value may have several
    lines; a value that contains a NUL is left out, because no process could get it."""
    valid = {name: value for name, value in spec.environment.items() if "\0" not in value and _is_variable_name(name)}
    variables = "".join(f"{name}={value}\0" for name, value in valid.items())
    files = {
        PERSONAL_VARIABLES: variables if spec.environment else None,
        DOTFILES: spec.dotfiles,
        STARTUP_SCRIPT: spec.startup_script,
    }
    return {name: text for name, text in files.items() if text is not None}


def _is_variable_name(name: str) -> bool:
    return _VARIABLE_NAME.fullmatch(name) is not None


def _format_environment(spec: ServerSpec, share: NodeShare) -> str:
    return "".join(f"{name}={value}\n" for name, value in build_environment(spec, share).items())


def format_authorized_keys(public_keys: Iterable[str], keys: ServerKeys) -> str:
    lines = [to_one_line(key).strip() for key in public_keys]
    if keys.mesh is not None:
        lines.append(f"{keys.mesh.public} gang")
    return "".join(f"{line}\n" for line in lines if line)


def format_jupyter_spec(spec: JupyterSpec | None) -> str:
    """Empty text: Jupyter is off."""
    return "" if spec is None else json.dumps(asdict(spec))


def _format_banner(spec: ServerSpec, share: NodeShare, home_is_kept: bool) -> str:
    gpus = f"{spec.gpu_count} × {spec.gpu_type}" if spec.gpu_count else spec.gpu_type
    until = f", until {spec.expires_at:%Y-%m-%d %H:%M} UTC" if spec.expires_at else ""
    disk, scratch = f"your disk {spec.disk_name or 'default'!r}", "scratch space that ends with the reservation"
    home = f"{disk}, kept for next time" if home_is_kept else scratch
    if home_is_kept and share.rank:
        home = f"{scratch}; {disk} is on node 0"
    lines = [
        f"gpu-dev reservation {short_id(spec.reservation_id)}: {gpus} on {share.node}{until}",
        f"{HOME} is {home}.",
    ]
    if len(spec.shares) > 1:
        lines.append(f"This is node {share.rank} of {len(spec.shares)}. On each of them:")
        lines.append(f"  {torchrun_command(share)} train.py")
    return "".join(f"{to_one_line(line)}\n" for line in lines)


def torchrun_command(share: NodeShare) -> str:
    """For people to copy; the shell that they paste it into expands the variables."""
    return (
        f"torchrun --nnodes $WORLD_SIZE --nproc-per-node {share.units} --node-rank $NODE_RANK"
        " --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
    )
