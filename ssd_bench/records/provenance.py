"""Provenance of a run: code, packages, device, time, command; and the content key, equal for runs of equal content.

Environment variables, host names and secrets are never stored.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from ssd_bench.plug_ins import PlugIn

CODE_PACKAGES = ("ssd_bench", "methods", "tasks")

READERS = (
    *(
        f"ssd_bench/{package}/"
        for package in (
            "report",
            "papers",
            "results",
            "predict",
            "exchange",
            "sweep",
            "compare",
            "reproduce",
            "commands",
        )
    ),
    *(f"ssd_bench/cost/{file}.py" for file in ("machine", "reference", "roofline", "shapes")),
    *(
        f"ssd_bench/{file}.py"
        for file in ("cli", "console", "paths", "quoting", "run_warnings", "compose/help", "tables")
    ),
    *(
        f"ssd_bench/records/{file}.py"
        for file in ("consistency", "description", "fault", "pack", "reader", "validation", "work_faults")
    ),
)
"""Code that only reads records, starts runs or helps; not in the code hash, so changes make no run stale."""

SOURCE_SUFFIXES = (".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".metal")

VERSIONS_OF = (
    *("torch", "transformers", "tokenizers", "safetensors", "datasets", "evaluate", "rouge-score", "hydra-core"),
    *("omegaconf", "numpy", "scipy", "pandas", "pyarrow", "scikit-learn", "wandb", "triton", "ssd-bench"),
)

DEFAULT_EXCLUDE = ("runs_dir", "force", "wandb", "dry", "minutes", "retry", "shard", "hydra", "progress", "run_id")
"""Dotted config keys that change where or how a run is shown, not its measurements."""

_SECRET = re.compile(r"((?:^|[._\-+])(?:api_?key|token|secret|password|passwd)=).*", re.IGNORECASE | re.DOTALL)


def collect(command: str | Sequence[str], gpus: Sequence[str] = (), plug_ins: Sequence[PlugIn] = ()) -> dict[str, Any]:
    """Collect the provenance of a run, ready for JSON.

    Args:
        command: the command line, as one string or as argv; values of options named like a secret are masked.
        gpus: names of the GPUs in use, from the caller, since this module does not import torch.
        plug_ins: used by the run.

    Returns:
        command, started_at (UTC), code (sha256, git_sha, git_dirty), python, platform, packages, plug_ins, device.
    """
    argv = shlex.split(command) if isinstance(command, str) else list(command)
    return {
        "command": shlex.join(_SECRET.sub(r"\1***", argument) for argument in argv),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": {"sha256": code_hash(), **_git_state(_package_dir("ssd_bench"))},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _versions(VERSIONS_OF),
        "plug_ins": [
            {
                "distribution": plug_in.distribution,
                "version": plug_in.version,
                "module": plug_in.module,
                "sha256": _contents_hash(plug_in_sources(plug_in, ".yaml")),
            }
            for plug_in in plug_ins
        ],
        "device": {"cpu": cpu_model(), "cores": _cores(), "ram_bytes": _ram_bytes(), "gpus": list(gpus)},
    }


def code_hash(extra_files: Iterable[Path | str] = ()) -> str:
    """Return the sha256 (hex) of the contents, not the names, of the source files of ssd_bench, methods and tasks.

    Args:
        extra_files: other files that a run depends on, such as a method outside the packages.
    """
    return _contents_hash((*_sources(), *map(Path, extra_files)))


def plug_in_sources(plug_in: PlugIn, *suffixes: str) -> list[Path]:
    """Return the source files of a plug-in, and its files with further suffixes, sorted."""
    files = (file for file in plug_in.folder.rglob("*") if file.suffix in (*SOURCE_SUFFIXES, *suffixes))
    return sorted(file for file in files if file.is_file())


def _contents_hash(files: Iterable[Path]) -> str:
    contents = sorted(hashlib.sha256(file.read_bytes()).digest() for file in files)
    return hashlib.sha256(b"".join(contents)).hexdigest()


def content_key(
    config: Mapping[str, Any], code_sha: str, data_sha: str, exclude: Iterable[str] = DEFAULT_EXCLUDE
) -> str:
    """Return the sha256 (hex) of what determines a run's content; runs with the same key need not be repeated.

    Independent of the order of keys, of tuple or list, and of 1 or 1.0.

    Args:
        config: the resolved config, plain containers only.
        exclude: dotted keys left out, with everything below.

    Raises:
        TypeError: a value has no plain JSON type.
    """
    relevant = _without(config, [tuple(key.split(".")) for key in exclude])
    text = json.dumps([_canonical(relevant), code_sha, data_sha], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _without(config: Mapping[str, Any], paths: list[tuple[str, ...]]) -> dict[str, Any]:
    remaining = {}
    for key, value in config.items():
        if (key,) in paths:
            continue
        below = [path[1:] for path in paths if path[0] == key]
        remaining[key] = _without(value, below) if below and isinstance(value, Mapping) else value
    return remaining


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _package_dir(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)  # finds a top-level package without importing it
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def _sources() -> Iterator[Path]:
    for package in CODE_PACKAGES:
        root = _package_dir(package)
        for file in sorted(root.rglob("*")) if root else ():
            name = f"{package}/{file.relative_to(root).as_posix()}" if root else ""
            if file.suffix in SOURCE_SUFFIXES and file.is_file() and not name.startswith(READERS):
                yield file


def _git(root: Path, *arguments: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, encoding="utf-8", timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def _git_state(package: Path | None) -> dict[str, Any]:
    root = package.parent if package else None
    # an installed copy may lie inside somebody else's checkout: only one that tracks this package counts
    tracked = root is not None and _git(root, "ls-files", "--error-unmatch", "ssd_bench/__init__.py") is not None
    if root is None or not tracked:
        return {"git_sha": None, "git_dirty": None}
    changes = _git(root, "status", "--porcelain", "--", *CODE_PACKAGES, "conf", "pyproject.toml")
    return {
        "git_sha": _git(root, "rev-parse", "--verify", "HEAD"),
        "git_dirty": None if changes is None else bool(changes),
    }


def _versions(packages: Iterable[str]) -> dict[str, str]:
    return {package: version for package in packages if (version := _version(package))}


@cache
def _version(package: str) -> str | None:
    """Return the installed version of a package, or None; cached for sweeps."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Return the name of the CPU, as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Return the number of cores that containers and schedulers allow."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
