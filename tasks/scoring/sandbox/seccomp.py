"""System calls refused in the sandbox, as a seccomp filter for the kernel.

The numbers are Linux's (`asm/unistd_64.h` and `asm-generic/unistd.h`), the filter's form `linux/seccomp.h`'s. Since the
list has refused, not allowed calls, any interpreter and C library can start; newer calls do not exist for the program.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping

# last call of Linux 6.10
_LAST = 462
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# name -> number on x86_64 and on aarch64; None: the machine has no such call
_REFUSED: Mapping[str, tuple[int | None, int | None]] = {
    # other programs, and ways out of the process group; `clone` is refused below, but for threads
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "setsid": (112, 157),
    "setpgid": (109, 154), "setns": (308, 268), "unshare": (272, 97),
    # signals to, memory and limits of other processes
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # the network, local sockets too
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    # what outlives a process or is no part of its address space
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # the kernel and the tree of files
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442),
    # changes of files that Landlock does not see; of `truncate` it knows since its third version
    "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}  # fmt: skip
_CLONE, _FCNTL, _PRLIMIT = (56, 220), (72, 25), (302, 261)
# With these errors the C library falls back to `clone`, and Python concludes that a file is no terminal.
_OTHER_ERRORS = (((435, 435), errno.ENOSYS), ((16, 29), errno.ENOTTY))  # clone3, ioctl
_CLONE_THREAD = 0x10000
_OWNERS = (8, 15)  # F_SETOWN, F_SETOWN_EX: whom a file's events signal

# instructions of the filter, and offsets of the fields of `struct seccomp_data`
_LOAD, _RETURN, _EQUAL, _ABOVE, _ANY_BIT = 0x20, 0x06, 0x15, 0x25, 0x45
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL = 0x7FFF0000, 0x80000000

_Instruction = tuple[int, int, int, int]


def seccomp_filter(machine: str) -> bytes:
    """Return the filter as an array of `struct sock_filter`; empty for an unknown `platform.machine()`."""
    if machine not in _ARCHITECTURES:
        return b""
    audit, column = _ARCHITECTURES[machine]
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_ABOVE, 0, 1, _LAST),
        _error(errno.ENOSYS),  # x32's calls are above, too
    ]
    for numbers in _REFUSED.values():
        code += _if_call(numbers[column], [_error(errno.EPERM)])
    for numbers, error in _OTHER_ERRORS:
        code += _if_call(numbers[column], [_error(error)])
    allow, refuse = (_RETURN, 0, 0, _ALLOW), _error(errno.EPERM)
    code += _if_call(_CLONE[column], [_argument(0), (_ANY_BIT, 0, 1, _CLONE_THREAD), allow, refuse])
    code += _if_call(
        _PRLIMIT[column], [_argument(0), (_EQUAL, 0, 1, 0), allow, refuse]
    )  # 0: limits of the process itself
    setown, setown_ex = _OWNERS
    code += _if_call(_FCNTL[column], [_argument(1), (_EQUAL, 2, 0, setown), (_EQUAL, 1, 0, setown_ex), allow, refuse])
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in [*code, allow])


def _if_call(number: int | None, block: list[_Instruction]) -> list[_Instruction]:
    """Return instructions that run a (returning) block for one call only."""
    return [] if number is None else [(_EQUAL, 0, len(block), number), *block]


def _error(number: int) -> _Instruction:
    return (_RETURN, 0, 0, 0x00050000 | number)


def _argument(index: int) -> _Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)
