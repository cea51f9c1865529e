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
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from ssd_bench.plug_ins import PlugIn

CODE_PACKAGES = ("ssd_bench", "methods", "tasks")

READERS = (
    *("ssd_bench/report/", "ssd_bench/papers/", "ssd_bench/results/", "ssd_bench/predict/"),
    *("ssd_bench/sweep/", "ssd_bench/compare/", "ssd_bench/reproduce/", "ssd_bench/commands/"),
    *(f"ssd_bench/cost/{file}.py" for file in ("machine", "reference", "roofline", "shapes")),
    *(f"ssd_bench/{file}.py" for file in ("cli", "console", "paths", "quoting", "run_warnings", "tables")),
    *("ssd_bench/compose/help.py", "ssd_bench/records/consistency.py", "ssd_bench/records/description.py"),
    *(f"ssd_bench/records/{file}.py" for file in ("fault", "pack", "reader", "validation", "work_faults")),
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
    """Collect the provenance of a run, ready for JSON (`header.Provenance`).

    Args:
        command: the command line, as one string or as argv; values of options named like a secret are masked.
        gpus: names of the GPUs in use, from the caller, since this module does not import torch.
        plug_ins: used by the run.
    """
    argv = shlex.split(command) if isinstance(command, str) else command
    device = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),  # that containers and schedulers allow
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": list(gpus),
    }
    return {
        "command": shlex.join(_SECRET.sub(r"\1***", argument) for argument in argv),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": {"sha256": code_hash(), **_git_state(_package_dir("ssd_bench"))},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _versions(),
        "plug_ins": [
            {name: getattr(plug_in, name) for name in ("distribution", "version", "module")}
            | {"sha256": _contents_hash(plug_in_sources(plug_in, ".yaml"))}
            for plug_in in plug_ins
        ],
        "device": device,
    }


def code_hash(extra_files: Iterable[Path] = ()) -> str:
    """Return the sha256 (hex) of the contents, not the names, of the sources of our packages and of `extra_files`."""
    return _contents_hash((*_sources(), *extra_files))


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


def _package_dir(name: str) -> Path:
    spec = importlib.util.find_spec(name)  # finds a top-level package without importing it
    assert spec is not None and spec.submodule_search_locations, f"{name} is one of this project's packages"
    return Path(spec.submodule_search_locations[0])


def _sources() -> Iterator[Path]:
    for package in CODE_PACKAGES:
        root = _package_dir(package)
        for file in sorted(root.rglob("*")):
            name = f"{package}/{file.relative_to(root).as_posix()}"
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


def _git_state(package: Path) -> dict[str, Any]:
    root = package.parent
    # an installed copy may lie inside somebody else's checkout: only one that tracks this package counts
    if _git(root, "ls-files", "--error-unmatch", "ssd_bench/__init__.py") is None:
        return {"git_sha": None, "git_dirty": None}
    changes = _git(root, "status", "--porcelain", "--", *CODE_PACKAGES, "conf", "pyproject.toml")
    return {
        "git_sha": _git(root, "rev-parse", "--verify", "HEAD"),
        "git_dirty": None if changes is None else bool(changes),
    }


@cache
def _versions() -> dict[str, str]:
    """Return the versions of installed packages; cached for sweeps."""
    versions = {}
    for package in VERSIONS_OF:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def cpu_model() -> str:
    """Return the name of the CPU, as the system gives it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(("model name", "Model")):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
