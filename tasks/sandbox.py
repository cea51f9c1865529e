"""Running a program that a model wrote, in a process of its own with limits.

This guards against what generated code does by accident: endless loops, memory without bound, files left behind,
processes that outlive it, exits that look like success. It is no wall against an attacker: the program runs as the same
user, the network and that user's files are within its reach, and a process that it puts into a session of its own
escapes. Use a container for more.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache

FILE_BYTES = 1 << 20
POLL_SECONDS = 0.005

# Reads the nonce and the program from stdin; writes the nonce to the given file once the program has ended without an
# exception. A limit that is stricter already stays.
_DRIVER = """
import os, resource, sys
proof, cpu, memory, size = map(int, sys.argv[1:])
for name, value in (("CPU", cpu), ("AS", memory), ("FSIZE", size), ("CORE", 0)):
    kind = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
nonce, _, source = sys.stdin.buffer.read().partition(b"\\n")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
exec(compile(source, "answer", "exec"), {"__name__": "answer"})
os.write(proof, nonce)
os._exit(0)
"""


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Attributes:
        cpu_seconds: processor time.
        wall_seconds: time on the clock.
        memory_mib: address space, in MiB, the interpreter's own included.
    """

    cpu_seconds: int
    wall_seconds: int
    memory_mib: int


@lru_cache(maxsize=256)
def runs_to_the_end(program: str, limits: Limits) -> bool:
    """Whether the program reaches its end without an exception and within the limits.

    Proof is a random number that is written after the program's last statement: a program that exits early, with
    whatever status, has none. It runs isolated (`-I`), with the standard library alone (`-S`), in an empty folder and
    an empty environment; its output is dropped. In the end all processes of its group are killed. The same program is
    run once: arms with the same text have the same score.
    """
    nonce = secrets.token_hex(16).encode()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as proof,
        tempfile.TemporaryFile() as source,
    ):
        source.write(nonce + b"\n" + program.encode(errors="replace"))
        source.seek(0)
        sizes = (proof.fileno(), limits.cpu_seconds, limits.memory_mib << 20, FILE_BYTES)
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _DRIVER, *map(str, sizes)],
            stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(proof.fileno(),),
            cwd=folder, env={}, start_new_session=True,
        )  # fmt: skip
        _end(child, limits.wall_seconds)
        proof.seek(0)
        return proof.read(len(nonce) + 1) == nonce


def _end(child: subprocess.Popen[bytes], wall_seconds: float) -> None:
    """Wait for the child, then kill its process group; the child is reaped last, so its id cannot be another's."""
    deadline = time.monotonic() + wall_seconds
    try:
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(POLL_SECONDS)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
