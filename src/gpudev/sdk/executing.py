"""Programs on this machine, waited for."""

import subprocess

from gpudev.sdk.effects import Execute, Executed
from gpudev.sdk.errors import NotInTime


def execute(effect: Execute) -> Executed:
    output = subprocess.PIPE if effect.captured else None
    process = subprocess.Popen(
        effect.arguments,
        stdin=subprocess.DEVNULL if effect.sent is None else subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=dict(effect.environment),
    )
    with process:
        try:
            stdout, stderr = process.communicate(effect.sent, effect.timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise NotInTime(f"the command did not end within {effect.timeout:g} seconds") from error
        except BaseException:
            process.kill()
            raise
    return Executed(process.returncode, stdout or b"", stderr or b"")
