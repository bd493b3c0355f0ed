"""`cli`: run time of the client, from process start to exit, compared with bare Python in the same run."""

import statistics
import subprocess
import sys
import time

from bench.figures import report
from bench.machine import CLI, running

_ROUNDS = 40


def run() -> None:
    with running() as machine:
        contestants = {
            "bare": [sys.executable, "-c", "pass"],
            "help": [*CLI, "--help"],
            "list": [*CLI, "list"],
        }
        medians = _medians(contestants, machine.environment)
    report("cli", "python -c pass", medians["bare"] * 1000, "ms", None)
    report("cli", "gpu-dev --help", medians["help"] * 1000, "ms", None)
    report("cli", "gpu-dev list", medians["list"] * 1000, "ms", None)
    report("cli", "gpu-dev --help / python -c pass", medians["help"] / medians["bare"], "x", 3.5)
    report("cli", "gpu-dev list / python -c pass", medians["list"] / medians["bare"], "x", 8.0)


def _medians(contestants: dict[str, list[str]], environment: dict[str, str]) -> dict[str, float]:
    """Alternates between the commands, so that other load on the machine affects them equally."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(_ROUNDS):
        for name, command in contestants.items():
            started = time.perf_counter()
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}
