"""The sandbox: what a model's programs can and cannot reach, and that the harness goes on."""

from __future__ import annotations

import os
import platform
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ssd_bench.data import LocalSource
from ssd_bench.errors import ConfigError
from tasks.scoring import sandbox
from tasks.scoring.sandbox import ProgramLimits, check, runs_to_the_end
from tasks.scoring.sandbox.seccomp import seccomp_filter
from tests.sources import local_source
from tests.tasks.test_tasks import make

LIMITS = ProgramLimits(cpu_seconds=1, wall_seconds=10, memory_mib=512)
FUNCTION = {"id": "h0", "prompt": 'def add(a, b):\n    """ Add. """\n', "entry_point": "add"}
FUNCTION["test"] = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
CTYPES = "import ctypes\nlibc = ctypes.CDLL(None)\n"


def _protected() -> bool:
    try:
        return runs_to_the_end("", LIMITS)
    except ConfigError:
        return False


PROTECTED = _protected()
needs_kernel = pytest.mark.skipif(not PROTECTED, reason="this kernel has no Landlock or no seccomp")


def passes(source: str, limits: ProgramLimits = LIMITS) -> bool:
    return runs_to_the_end(source, limits, PROTECTED)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "raise SystemExit",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
        "assert False",
        "this is no Python",
        "while True: pass",
        "bytearray(10 << 30)",
        "open('large', 'wb').write(bytes(1 << 21))",
        "files = [open(str(i), 'w') for i in range(100)]",
        "import torch",
        "input()",
        "x = '\ud800'\nraise ValueError(x)",
        "f = lambda: f()\nf()",
        "import os\nos.closerange(0, 64)",
    ],
)
def test_a_program_that_does_not_reach_its_end_fails(source: str) -> None:
    began = time.monotonic()
    assert not passes(source)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "source",
    [
        "",
        "import os\nassert not os.listdir() and 'HOME' not in os.environ and 'PATH' not in os.environ",
        "open('small', 'w').write('x')\nprint('x' * 10**6)\nimport sys\nprint('y', file=sys.stderr)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "from concurrent.futures import ThreadPoolExecutor as T\nassert [*T(4).map(abs, [-1, 2])] == [1, 2]",
        "import decimal, hashlib, heapq, random, re, typing\nhashlib.sha256(b'x')\nassert __name__ != '__main__'",
        "import os\nos.mkdir('a')\nopen('a/b', 'w').close()\nos.rename('a/b', 'a/c')\nos.remove('a/c')\nos.rmdir('a')",
        "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x')",
    ],
)
def test_a_program_that_reaches_its_end_passes(source: str) -> None:
    began = time.monotonic()
    assert passes(source)
    assert time.monotonic() - began < LIMITS.wall_seconds


@needs_kernel
@pytest.mark.parametrize(
    "attack",
    [
        "open({new!r}, 'w').close()",
        "open({secret!r}, 'a').close()",
        "open({secret!r}).read()",
        "os.truncate({secret!r}, 0)",
        "os.open({secret!r}, os.O_RDONLY | os.O_TRUNC)",
        "os.remove({secret!r})",
        "os.rename({secret!r}, 'here')",
        "os.link({secret!r}, 'link')\nopen('link').read()",
        "os.symlink({secret!r}, 'link')\nopen('link').read()",
        "os.symlink({folder!r}, 'link')\nopen('link/new', 'w').close()",
        "os.chdir({folder!r})\nopen('new', 'w').close()",
        "os.mkdir({new!r})",
        "os.symlink('x', {new!r})",
        "os.mkfifo({new!r})",
        "os.listdir({folder!r})",
        "os.listdir('/proc')",
        "os.chmod({secret!r}, 0o777)",
        "os.utime({secret!r}, (1, 1))",
        "os.chown({secret!r}, os.getuid(), os.getgid())",
        CTYPES + "assert libc.open({new!r}.encode(), 0o102, 0o600) >= 0",
        CTYPES + "assert libc.chmod({secret!r}.encode(), 0o777) == 0",
    ],
)
def test_files_elsewhere_are_out_of_reach(attack: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret", encoding="utf-8")
    before = secret.stat()
    places = {"folder": str(tmp_path), "secret": str(secret), "new": str(tmp_path / "new")}
    attack = "import os\n" + attack.format(**places)
    assert not passes(attack)
    assert passes(_swallowed(attack))
    assert list(tmp_path.iterdir()) == [secret] and secret.read_text(encoding="utf-8") == "secret"
    after = secret.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_nlink) == (before.st_mode, before.st_mtime_ns, before.st_nlink)


def _swallowed(attack: str) -> str:
    return f"try: exec({attack!r})\nexcept (OSError, AssertionError): pass"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@needs_kernel
@pytest.mark.parametrize(
    "attack",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
        "import socket\nsocket.socket(socket.AF_UNIX)",
        "import socket\nsocket.socketpair()",
        CTYPES + "assert libc.socket(2, 1, 0) >= 0",
        CTYPES + "assert libc.syscall(425, 8, bytes(120)) >= 0",  # io_uring_setup
    ],
)
def test_there_is_no_network(attack: str, listener: socket.socket) -> None:
    attack = attack.format(port=listener.getsockname()[1])
    assert not passes(attack)
    assert passes(_swallowed(attack))
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.fixture(scope="module")
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


@needs_kernel
@pytest.mark.parametrize(
    "attack",
    [
        "while True: os.fork()",
        "while True:\n    try: os.fork()\n    except OSError: pass",
        "os.fork() or os._exit(0)",
        "os.system('true') and 1 / 0",
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])",
        "os.posix_spawn('/bin/true', ['true'], {{}})",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        "os.kill({pid}, 9)",
        "os.kill(os.getppid(), 0)",
        "os.killpg(os.getpgid(os.getppid()), 0)",
        "os.kill(-1, 0)",
        "os.sched_setaffinity({pid}, {{0}})",
        "os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
        "import resource\nresource.prlimit({pid}, resource.RLIMIT_CPU, (0, 0))",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))",
        CTYPES + "pid = libc.fork()\npid or os._exit(0)\nassert pid > 0",
        CTYPES + "pid = libc.syscall(435, bytes(64), 64)\npid or os._exit(0)\nassert pid > 0",  # clone3
        CTYPES + "assert libc.ptrace(16, {pid}, 0, 0) == 0",
        CTYPES + "assert libc.unshare(0x10000000) == 0",
        CTYPES + "assert libc.kill({pid}, 9) == 0",
        CTYPES + "assert libc.fcntl(0, 8, {pid}) == 0",
    ],
)
def test_other_processes_are_out_of_reach_and_none_is_started(attack: str, other: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    assert not passes("import os\n" + attack.format(pid=other.pid))
    assert other.poll() is None and time.monotonic() - began < 5
    assert passes(f"good = {attack!r}")


@needs_kernel
def test_a_program_is_not_replaced_by_another() -> None:
    assert passes("import os\ntry: os.execv('/bin/true', ['true'])\nexcept PermissionError: pass")


@needs_kernel
def test_no_process_outlives_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = (
        "import os, threading, time\nopen('left', 'w').close()\n"
        "for start in (os.fork, os.forkpty, lambda: os.spawnv(os.P_NOWAIT, '/bin/sleep', ['sleep', '60'])):\n"
        "    try: start() or time.sleep(60)\n    except OSError: pass\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
    )
    before = _children()
    assert passes(source)
    assert _children() == before and not list(tmp_path.iterdir())


def _children() -> set[int]:
    """Ids of this process's descendants and of orphans that work in a removed folder."""
    found, parents = set(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2]
                parents[int(entry.name)] = int(after_name.split()[1])
                if os.readlink(entry / "cwd").endswith("(deleted)"):
                    found.add(int(entry.name))
            except OSError:
                continue
    return found | {pid for pid, parent in parents.items() if parent == os.getpid()}


@pytest.mark.parametrize("depth", [3, 3000])
def test_the_folder_is_removed_whatever_is_in_it(depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert passes(f"import os\nfor _ in range({depth}):\n    os.mkdir('d')\n    os.chdir('d')\nopen('x', 'w').close()")
    assert not list(tmp_path.iterdir())


def test_the_clock_ends_a_program_that_waits() -> None:
    began = time.monotonic()
    assert not passes("import time\ntime.sleep(60)", ProgramLimits(cpu_seconds=2, wall_seconds=1, memory_mib=512))
    assert 1 <= time.monotonic() - began < 10


def test_the_same_program_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def popen(*arguments: object, **options: object) -> object:
        started.append(arguments)
        return original(*arguments, **options)

    original: Callable[..., object] = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", popen)
    assert [passes("once = 1") for _ in range(3)] == [True] * 3
    assert len(started) == 1


def test_the_parent_keeps_its_environment_and_folder() -> None:
    before = (os.getcwd(), dict(os.environ))
    assert passes("import os\nos.chdir('/')\nos.environ['SSD_TEST'] = '1'")
    assert (os.getcwd(), dict(os.environ)) == before


@pytest.fixture
def problem(tmp_path: Path) -> LocalSource:
    return local_source(tmp_path, {"humaneval": [FUNCTION]})


def test_limits_in_which_python_cannot_start_are_refused(problem: LocalSource) -> None:
    with pytest.raises(ConfigError, match=r"'memory_mib': 1\}.*within which Python starts"):
        make("humaneval", memory_mib=1).prompts(problem, "chat", None, 0)


@pytest.fixture
def without_seccomp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose system calls are not known."""
    runs_to_the_end.cache_clear()
    check.cache_clear()
    monkeypatch.setattr(sandbox, "seccomp_filter", lambda machine: b"")
    yield
    runs_to_the_end.cache_clear()
    check.cache_clear()


@pytest.mark.usefixtures("without_seccomp")
def test_a_kernel_without_protection_is_refused_unless_best_effort_is_asked_for(problem: LocalSource) -> None:
    with pytest.raises(ConfigError, match=r"task\.sandbox='required' .*lacks .*seccomp.*best_effort"):
        make("humaneval").prompts(problem, "chat", None, 0)
    task = make("humaneval", sandbox="best_effort")
    (prompt,) = task.prompts(problem, "chat", None, 0)
    assert task.score(prompt, "    return a + b\n") == 1.0
    assert task.score(prompt, "    return a - b\n") == 0.0
    with pytest.raises(ConfigError, match="seccomp"):
        make("humaneval").score(prompt, "    return a + b\n")


@needs_kernel
def test_what_is_not_prevented_is_named(problem: LocalSource, monkeypatch: pytest.MonkeyPatch) -> None:
    check.cache_clear()
    monkeypatch.setitem(sandbox._PROBES, "counting", "len({!r})")
    with pytest.raises(ConfigError, match=r"task\.sandbox='required' .*does not prevent counting: "):
        make("humaneval").prompts(problem, "chat", None, 0)
    check.cache_clear()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_of_the_filter_stays_in_it(machine: str) -> None:
    code = list(struct.iter_unpack("<HBBI", seccomp_filter(machine)))
    assert code and code[-1] == (0x06, 0, 0, 0x7FFF0000)
    for place, (kind, yes, no, _) in enumerate(code):
        assert kind != 0x06 or yes == no == 0
        assert place + 1 + max(yes, no) < len(code) or kind == 0x06


def test_the_filter_of_an_unknown_machine_is_empty() -> None:
    assert seccomp_filter("riscv64") == b""
    assert seccomp_filter(platform.machine()) or not PROTECTED
