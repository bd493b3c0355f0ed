"""The settings that the chart takes under their own names: all that the server reads, but for those that have a place
of their own in the values or mean nothing in a pod."""

import json
import re
from typing import Any

from gpudev import settings
from support.deploy.helm_chart import CHART

SCHEMA = CHART / "values.schema.json"
_OWN_VALUES = re.compile(r"^([A-Z][A-Z0-9_]+): ", re.MULTILINE)
_ONE_MACHINE = {
    "GPU_DEV_HOME",
    "GPU_DEV_KUBE_CONTEXT",
    "GPU_DEV_LISTEN",
    "GPU_DEV_NODES_FILE",
    "GPU_DEV_NOTIFY_URLS_FILE",
    "GPU_DEV_SSH_HOST",
    "GPU_DEV_NETWORK",
    "GPU_DEV_NETWORK_RANGE",
    "GPU_DEV_TLS_CERT",
    "GPU_DEV_TLS_KEY",
}
_SECRETS = {"GPU_DEV_NOTIFY_URLS"}
"""For `settingsSecret`: what stands in the values can be read by whoever may read a ConfigMap."""
_WIDTH = 118


def settings_of_the_server() -> set[str]:
    recording = settings._RecordingEnvironment({"GPU_DEV_CLUSTER": "kubernetes"})
    settings.load_settings(recording)
    given_elsewhere = set(_OWN_VALUES.findall((CHART / "templates" / "settings.yaml").read_text()))
    ours = {name for name in recording.read_names if name.startswith(("GPU_DEV_", "API_KEY_"))}
    return ours - given_elsewhere - _ONE_MACHINE - _SECRETS


def settings_in_schema() -> set[str]:
    return set(_read()["properties"]["settings"]["properties"])


def write_settings() -> None:
    schema = _read()
    one = {"$ref": "#/definitions/setting"}
    schema["properties"]["settings"]["properties"] = dict.fromkeys(sorted(settings_of_the_server()), one)
    SCHEMA.write_text(_laid_out(schema) + "\n")


def _read() -> Any:
    return json.loads(SCHEMA.read_text())


def _laid_out(value: Any, indent: int = 0) -> str:
    """One line for what fits into one."""
    line = json.dumps(value)
    if not isinstance(value, dict) or len(line) + indent <= _WIDTH:
        return line
    inner = " " * (indent + 2)
    parts = ",\n".join(f"{inner}{json.dumps(name)}: {_laid_out(part, indent + 2)}" for name, part in value.items())
    return f"{{\n{parts}\n{' ' * indent}}}"
