"""A seccomp filter that keeps the processes of a dev server from creating user namespaces.

In a user namespace of one's own one has every capability, which opens much of the kernel to every user. The filter
looks at `unshare` and `clone`. `clone3` passes its flags in memory, where no filter can read them: it fails as on an
older kernel, and the C library then uses `clone`.
"""

import ctypes
import errno
import platform
import struct
from dataclasses import dataclass

from gpudev.adapters.local.machine.linux import CLONE_NEWUSER, IS_LINUX

_LOAD, _AND, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # in seccomp_data; its lower half, as all here are LE
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_X32_BIT = 0x40000000
_SET_MODE_FILTER = 1
_ALLOW_SPECULATION = 4
"""Without it, kernels before 5.16 slow down every process that has a filter."""
_INSTRUCTION = struct.Struct("=HBBI")
Instruction = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Architecture:
    audit: int
    clone: int
    unshare: int
    clone3: int = 435
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Machine:
    seccomp: int
    """The number of the system call that installs a filter."""
    architectures: tuple[_Architecture, ...]
    """Its own, and the 32-bit one that its kernel runs too."""


_MACHINES = {
    "x86_64": _Machine(
        317, (_Architecture(0xC000003E, 56, 272, mask=0xFFFFFFFF ^ _X32_BIT), _Architecture(0x40000003, 120, 310))
    ),
    "aarch64": _Machine(277, (_Architecture(0xC00000B7, 220, 97), _Architecture(0x40000028, 120, 337))),
}


def forbid_user_namespaces() -> bool:
    """For this process and all that it starts, for good. It needs no_new_privs. False: not possible here."""
    machine = _MACHINES.get(platform.machine()) if IS_LINUX else None
    if machine is None:
        return False
    instructions = filter_program(platform.machine())
    code = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*instruction) for instruction in instructions))
    program = _FilterProgram(len(instructions), ctypes.cast(code, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    return any(
        libc.syscall(
            ctypes.c_long(machine.seccomp),
            ctypes.c_uint(_SET_MODE_FILTER),
            ctypes.c_uint(flags),
            ctypes.byref(program),
        )
        == 0
        for flags in (_ALLOW_SPECULATION, 0)
    )


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def filter_program(machine: str) -> list[Instruction]:
    program = [_load(_ARCHITECTURE_AT)]
    for architecture in _MACHINES[machine].architectures:
        program += _section(architecture)
    return [*program, _return(_FAIL | errno.EPERM)]  # an architecture that this kernel should not have


def _section(architecture: _Architecture) -> list[Instruction]:
    """Entered with the architecture loaded. Another one jumps over it."""
    body = [
        _load(_NUMBER_AT),
        (_AND, 0, 0, architecture.mask),
        (_JUMP_IF_EQUAL, 0, 1, architecture.clone3),
        _return(_FAIL | errno.ENOSYS),
        (_JUMP_IF_EQUAL, 1, 0, architecture.clone),
        (_JUMP_IF_EQUAL, 0, 3, architecture.unshare),
        _load(_FIRST_ARGUMENT_AT),
        (_JUMP_IF_SET, 0, 1, CLONE_NEWUSER),
        _return(_FAIL | errno.EPERM),
        _return(_ALLOW),
    ]
    return [(_JUMP_IF_EQUAL, 0, len(body), architecture.audit), *body]


def _load(offset: int) -> Instruction:
    return (_LOAD, 0, 0, offset)


def _return(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)
