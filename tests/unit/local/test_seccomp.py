"""The filter against user namespaces, run as the kernel would run it."""

import errno

import pytest

from gpudev.adapters.local.machine.linux import CLONE_NEWNS, CLONE_NEWUSER
from gpudev.adapters.local.machine.seccomp import filter_program

ALLOWED = 0x7FFF0000
X86_64, I386, AARCH64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
SIGCHLD = 17


def outcome(machine: str, architecture: int, number: int, argument: int = 0) -> int:
    """The error number that a system call fails with. 0: it is allowed."""
    program = filter_program(machine)
    memory = {0: number, 4: architecture, 16: argument & 0xFFFFFFFF}
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        match code:
            case 0x20:
                accumulator = memory[value]
            case 0x54:
                accumulator &= value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case 0x06:
                return 0 if value == ALLOWED else value & 0xFFFF
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


@pytest.mark.parametrize(
    ("machine", "architecture", "clone", "unshare"),
    [
        ("x86_64", X86_64, 56, 272),
        ("x86_64", X86_64, 0x40000000 + 56, 0x40000000 + 272),
        ("x86_64", I386, 120, 310),
        ("aarch64", AARCH64, 220, 97),
        ("aarch64", ARM, 120, 337),
    ],
)
def test_no_call_of_any_architecture_creates_a_user_namespace(
    machine: str, architecture: int, clone: int, unshare: int
) -> None:
    extra = clone & 0x40000000
    for number in (clone, unshare):
        assert outcome(machine, architecture, number, CLONE_NEWUSER) == errno.EPERM
        assert outcome(machine, architecture, number, CLONE_NEWUSER | CLONE_NEWNS | SIGCHLD) == errno.EPERM
        assert outcome(machine, architecture, number, CLONE_NEWNS | SIGCHLD) == 0
    assert outcome(machine, architecture, extra + 435, 0) == errno.ENOSYS
    for number in (0, 1, 3, 59, 221, 500):
        assert outcome(machine, architecture, extra + number, CLONE_NEWUSER) == 0


def test_an_unknown_architecture_may_do_nothing() -> None:
    assert outcome("x86_64", AARCH64, 0) == errno.EPERM
