"""Sandbox for a program that a model wrote: a process of its own that the kernel locks up, without root rights.

The program can reach (`driver`, `seccomp`):

- files: it writes only in an empty folder of its own, removed afterwards, and reads only there, in Python's standard
  library and in shared libraries (Landlock);
- processes: it cannot start or signal any, or leave its process group; threads work (seccomp);
- network: it cannot open sockets of any kind (seccomp, and Landlock for TCP), so `asyncio` does not run;
- time, memory, size of a file: limited (`setrlimit`);
- privileges: none, even if the harness runs as root.

Not prevented: it can see any file's existence and size; it can write many files of the largest size until its time is
over; it may use faults of the shared kernel. A program that searches its own interpreter for the proof of success finds
it: no test within a program's process is safe from it.
"""

from __future__ import annotations

import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path

from ssd_bench.errors import ConfigError
from tasks.scoring.sandbox.seccomp import seccomp_filter

FILE_BYTES = 1 << 20
POLL_SECONDS = 0.005
_DRIVER = Path(__file__).with_name("driver.py")

# A probe succeeds if the kernel refuses its statement; {} is a file outside its folder.
_PROBES = {
    "writing outside the folder": "open({!r}, 'a')",
    "reading outside the folder": "open({!r})",
    "removing outside the folder": "os.remove({!r})",
    "changing modes of files": "os.chmod({!r}, 0o600)",
    "sockets": "__import__('_socket').socket()",
    "processes": "os.fork() or os._exit(0)",
    "signals to the harness": "os.kill(os.getppid(), 0)",
}


@dataclass(frozen=True)
class ProgramLimits:
    """Limits of one program.

    Attributes:
        cpu_seconds: processor time.
        memory_mib: address space, including the interpreter's.
    """

    cpu_seconds: int
    wall_seconds: int
    memory_mib: int


@cache
def check(limits: ProgramLimits, required: bool) -> None:
    """Run, once, an empty program and, if protection is required, programs that try what it must prevent.

    Raises:
        ConfigError: limits too low even for an empty program, or a missing protection.
    """
    if not runs_to_the_end("", limits, required):
        expected = "limits of time and memory (task.memory_mib) within which Python starts; it did not"
        raise ConfigError("task", asdict(limits), expected)
    if not required:
        return
    with tempfile.NamedTemporaryFile() as outside:
        attempts = {name: source.format(outside.name) for name, source in _PROBES.items()}
        template = "import os\ntry: {}\nexcept PermissionError: pass\nelse: raise SystemExit"
        if possible := [
            name for name, attempt in attempts.items() if not runs_to_the_end(template.format(attempt), limits)
        ]:
            raise _protection_error(f"does not prevent {', '.join(possible)}")


@lru_cache(maxsize=256)
def runs_to_the_end(program: str, limits: ProgramLimits, required: bool = True) -> bool:
    """Return whether a program (Python source) ends without an exception and within the limits.

    The proof is a random number written after the program's last statement, which an early exit leaves out, whatever
    its status. The program runs isolated (`-I`), with only the standard library (`-S`), in an empty folder and
    environment; its output is dropped. In the end its process group is killed. The same program runs only once.

    Args:
        required: run it only with all protections, else with this kernel's.

    Raises:
        ConfigError: the kernel lacks required protection; nothing was run.
    """
    nonce = secrets.token_hex(16).encode()
    with _folder() as folder, tempfile.TemporaryFile() as proof, tempfile.TemporaryFile() as source:
        source.write(nonce + b"\n" + program.encode(errors="replace"))
        source.seek(0)
        numbers = (proof.fileno(), limits.cpu_seconds, limits.memory_mib << 20, FILE_BYTES, int(required))
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", _DRIVER, *map(str, numbers), seccomp_filter(platform.machine()).hex()],
            stdin=source,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(proof.fileno(),),
            cwd=folder,
            env={},
            start_new_session=True,
        )
        _end_group(child, limits.wall_seconds)
        proof.seek(0)
        outcome, _, missing = proof.read(FILE_BYTES).partition(b" ")
    if outcome == nonce and missing:
        raise _protection_error(f"lacks {missing.decode()}")
    return outcome == nonce


def _protection_error(problem: str) -> ConfigError:
    expected = (
        f"this kernel {problem}: use Linux 5.13 or newer with Landlock and seccomp, x86_64 or aarch64, "
        "or task.sandbox=best_effort where a container guards what a model's program must not reach"
    )
    return ConfigError("task.sandbox", "required", expected)


@contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    try:
        yield folder.name
    finally:
        try:
            folder.cleanup()
        except RecursionError:
            subprocess.run(["rm", "-rf", "--", folder.name], stderr=subprocess.DEVNULL, check=False)


def _end_group(child: subprocess.Popen[bytes], wall_seconds: float) -> None:
    """Wait for the child, then kill its process group; reap the child last, so that its id is not reused."""
    deadline = time.monotonic() + wall_seconds
    try:
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(POLL_SECONDS)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
