"""Builder and loader of the C++ extension: one build per instruction level, torch version and source text."""

import hashlib
import importlib.util
import os
import platform
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from ssd_bench.lease import hold_lease
from ssd_bench.model.arithmetic import IsaLevel

HERE = Path(__file__).parent
SOURCES = [HERE / "cpu.cpp"]
HEADERS = sorted(HERE.glob("*.h"))
# -fopenmp when compiling only: without the linker flag, OpenMP's symbols come from the runtime that torch has loaded,
# never from a second one. No -ffast-math: it would flush denormals in the whole process.
CFLAGS = ["-O3", "-fopenmp", "-ffp-contract=fast", "-fvisibility=hidden", "-Wno-psabi"]


class BuildError(Exception):
    """The extension cannot be built here; the message is one line."""


def build_directory(level: IsaLevel) -> Path:
    """Return a level's build folder, under $SSD_BENCH_CACHE or torch's extension cache."""
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES + HEADERS)
    parts = [text, *CFLAGS, *level.flags, torch.__version__, sysconfig.get_config_var("SOABI"), platform.machine()]
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    root = os.environ.get("SSD_BENCH_CACHE")
    if root:
        return Path(root) / "kernels" / f"{level.name}_{digest}"
    from torch.utils.cpp_extension import get_default_build_root

    base = os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()
    return Path(base) / f"{_module_name(level)}_{digest}"


def _module_name(level: IsaLevel) -> str:
    return f"ssd_bench_cpu_{level.name}"


@contextmanager
def _tools_on_path() -> Iterator[None]:
    """Let torch find ninja in a virtual environment that is not activated."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([before, str(Path(sys.executable).parent)])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _import(name: str, library: Path) -> ModuleType:
    """Load a finished build without rerunning ninja (about a second)."""
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line or "not found" in line]
    text = (errors or lines or [type(error).__name__])[0]
    return text[:300]


def _compile(level: IsaLevel, directory: Path) -> None:
    """Run torch's builder; the caller holds the lock."""
    from torch.utils import cpp_extension

    # Only a builder that was killed leaves torch's own lock behind while we hold ours, and torch would wait for it.
    (directory / "lock").unlink(missing_ok=True)
    cpp_extension.load(
        _module_name(level),
        [str(path) for path in SOURCES],
        extra_cflags=[*CFLAGS, *level.flags],
        build_directory=str(directory),
        verbose=False,
    )


def load_extension(level: IsaLevel) -> ModuleType:
    """Return a level's compiled module; build it if necessary.

    Raises:
        BuildError: no compiler or ninja, or a failed build.
    """
    try:
        name, directory = _module_name(level), build_directory(level)
        library, finished = directory / f"{name}.so", directory / "finished"
        if not (finished.exists() and library.exists()):
            with hold_lease(directory, "build.lock"), _tools_on_path():
                if not (finished.exists() and library.exists()):
                    _compile(level, directory)
                    finished.touch()
        return _import(name, library)
    except Exception as error:  # a compiler, linker or file system can fail in any way: all mean "no native kernels"
        raise BuildError(_reason(error)) from error
