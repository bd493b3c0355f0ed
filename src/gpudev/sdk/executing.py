"""Programs on this machine, waited for."""

import subprocess

from gpudev.sdk.effects import ProgramResult, RunProgram
from gpudev.sdk.errors import NotInTime


def run_program(effect: RunProgram) -> ProgramResult:
    output = subprocess.PIPE if effect.capture_output else None
    process = subprocess.Popen(
        effect.arguments,
        stdin=subprocess.DEVNULL if effect.stdin is None else subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=dict(effect.environment),
    )
    with process:
        try:
            stdout, stderr = process.communicate(effect.stdin, effect.timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise NotInTime(f"the command did not end within {effect.timeout:g} seconds") from error
        except BaseException:
            process.kill()
            raise
    return ProgramResult(process.returncode, stdout or b"", stderr or b"")
