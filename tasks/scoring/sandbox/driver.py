"""Script of `sandbox`: a process that locks itself up, then runs the program that it reads from stdin.

    python -I -S -B driver.py PROOF CPU MEMORY SIZE REQUIRED FILTER < NONCE, a newline, and the program

PROOF is the file descriptor for the outcome: the nonce if the program ended without an exception; or, if REQUIRED is 1
and the kernel lacks protections, the nonce, a space and their names, without running the program. CPU is in seconds,
MEMORY and SIZE (of a file) in bytes, FILTER the seccomp filter in hexadecimal. Every answer waits for the script's
imports, so they are few.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

_LIBC = ctypes.CDLL(None)
# linux/prctl.h, linux/seccomp.h
_DEATH_SIGNAL, _NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 1, 38, 22, 2
_SIGKILL = 9
_OPEN_FILES = 64

# linux/landlock.h: the system calls, and the rights to files by their bits.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_DEVICES = 1 << 6 | 1 << 11 | 1 << 15  # making character and block devices, and their ioctl
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # version -> how many rights to files it knows
_RIGHTS_SINCE_5 = 16
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
_TCP, _SCOPES = 3, 3  # bind and connect; abstract sockets and signals of other processes
# readable besides the standard library: shared libraries, time zones, locales
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")


class _Program(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def main() -> None:
    proof, cpu, memory, size, required = map(int, sys.argv[1:6])
    seccomp = bytes.fromhex(sys.argv[6])
    nonce, _, source = sys.stdin.buffer.read().partition(b"\n")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _limit(cpu, memory, size)
    missing = _lock(seccomp)
    if missing and required:
        os.write(proof, nonce + b" " + " and ".join(missing).encode())
        return
    exec(compile(source, "answer", "exec"), {"__name__": "answer"})
    os.write(proof, nonce)
    os._exit(0)


def _limit(cpu: int, memory: int, size: int) -> None:
    wanted = {"CPU": cpu, "AS": memory, "FSIZE": size, "CORE": 0, "NOFILE": _OPEN_FILES}
    for name, value in wanted.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _lock(seccomp: bytes) -> list[str]:
    """Give up privileges and rights to files, network and processes; return the missing protections."""
    _control(_DEATH_SIGNAL, _SIGKILL)  # kill this process when the harness has ended
    header, none = struct.pack("<Ii", 0x20080522, 0), bytes(24)
    _LIBC.capset(header, none)  # as root, too, the process must obey the limits and cannot raise them
    _control(_NO_NEW_PRIVILEGES, 1)
    missing = []
    if not _landlock():
        missing.append("Landlock")
    program = _Program(len(seccomp) // 8, seccomp)
    if not seccomp or _control(_SECCOMP, _FILTER, ctypes.addressof(program)) != 0:
        missing.append("seccomp")
    return missing


def _landlock() -> bool:
    """Restrict files to the working folder and to reading what Python needs; return False if the kernel cannot."""
    version = _call(_CREATE_RULESET, 0, 0, 1)
    if version < 1:
        return False
    files = (1 << _RIGHTS.get(version, _RIGHTS_SINCE_5)) - 1
    network = _TCP if version >= _NETWORK_SINCE else 0
    scopes = _SCOPES if version >= _SCOPES_SINCE else 0
    wanted = ctypes.create_string_buffer(struct.pack("<QQQ", files, network, scopes), 24)
    rules = _call(_CREATE_RULESET, ctypes.addressof(wanted), 24, 0)
    if rules < 0:
        return False
    allowed = dict.fromkeys((*sys.path, os.path.join(sys.prefix, "lib"), *_SYSTEM), _READ | _LIST)
    allowed |= {os.devnull: _READ | _WRITE | _TRUNCATE, os.getcwd(): files & ~(_EXECUTE | _DEVICES)}
    done = all(_allow(rules, path, rights & files) for path, rights in allowed.items())
    done = done and _call(_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return done


def _allow(rules: int, path: str, rights: int) -> bool:
    """Add a rule for a path and everything below, if it exists; return whether that worked."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return True
    if not os.path.isdir(path):
        rights &= _READ | _WRITE | _TRUNCATE
    rule = ctypes.create_string_buffer(struct.pack("<Qi", rights, place), 12)
    done = _call(_ADD_RULE, rules, 1, ctypes.addressof(rule), 0) == 0
    os.close(place)
    return done


def _call(number: int, *arguments: int) -> int:
    return int(_LIBC.syscall(*map(ctypes.c_long, (number, *arguments))))


def _control(option: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return int(_LIBC.prctl(option, *map(ctypes.c_ulong, padded)))


if __name__ == "__main__":
    main()
