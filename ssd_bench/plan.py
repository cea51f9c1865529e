"""A plan: everything about a run that can be known and refused before anything large is loaded."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from omegaconf import DictConfig, OmegaConf

from ssd_bench.compose import KINDS, built
from ssd_bench.core import lossless
from ssd_bench.core.method import Calibrated, Method, Origin, Sample
from ssd_bench.core.sampling import Decoding
from ssd_bench.data.prompting import Encoded
from ssd_bench.data.prompts import apart, encode_all, limits
from ssd_bench.errors import ConfigError
from ssd_bench.hardware import Hardware, Options
from ssd_bench.model.backend import Backend, select
from ssd_bench.model.checkpoint import Checkpoint, ModelSource
from ssd_bench.model.shape import ModelDims, Shape
from ssd_bench.model.weights import architecture
from ssd_bench.records import provenance
from ssd_bench.records.schema import arms_of
from ssd_bench.settings import GIVEN, MISSING, Count, Fits, Whole, arguments, checked
from ssd_bench.task import DataSource, Prompt, Task
from ssd_bench.tracking import Tracking

SMALL_BYTES = 2**26  # weights that are retrained keep their size; these are read in no time
SEARCHES = "searches"  # folder in runs_dir of what offline searches found
UNRECORDED = ("runs_dir", "force", "wandb", "dry", "minutes")  # options that change nothing that is measured

Folder = Annotated[str, Fits("a folder", lambda path: path and _may_be_folder(Path(path)))]
Name = Annotated[str, Fits("a text without /, for the name of a folder", re.compile(r"[^/\0]+").fullmatch)]
OPTIONS = {
    "limit": Count | None, "repeats": Count, "seed": Whole, "force": bool, "runs_dir": Folder, "variant": str | None,
    "baseline": Any,
}  # fmt: skip
TABLES: dict[str, type] = {"decode": Decoding, "hardware": Options, "wandb": Tracking}
KNOWN = (*OPTIONS, *TABLES, *KINDS, "dry", "minutes")


@dataclass(frozen=True)
class Plan:
    """A run that passed every check; nothing large is loaded yet."""

    config: dict[str, Any]
    hardware: Hardware
    backend: Backend
    decoding: Decoding
    method: Method
    task: Task
    prompts: Sequence[Prompt]
    encoded: Sequence[Encoded]
    new_tokens: Sequence[int]
    samples: Sequence[Sample]
    checkpoint: Checkpoint
    rehearsal: bool
    dims: ModelDims
    origin: Origin
    context: int
    fingerprints: dict[str, str]
    content_key: str
    run_dir: Path

    @property
    def tie_tolerance(self) -> float:
        """The top-2 logit gap up to which a different token counts as rounding."""
        kinds = self.backend.arithmetic.named()
        return lossless.tolerance(str(kinds["activations"]), str(kinds["inputs"]), self.hardware.dtype_name)

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of what decodes each prompt."""
        return arms_of(self.config["baseline"])

    def units(self) -> Iterator[tuple[int, int]]:
        """(prompt index, repeat) in stream order."""
        return ((i, repeat) for repeat in range(self.config["repeats"]) for i in range(len(self.prompts)))


def plan(cfg: DictConfig) -> Plan:
    """Compose, check and tokenise, without loading weights.

    Raises:
        ConfigError: anything that cannot work, with the field, its value and what is allowed.
    """
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    _check_options(config)
    hardware = Hardware.of(**config["hardware"])
    if config["baseline"] == "hf" and len(set(hardware.devices)) > 1:
        raise ConfigError("baseline", "hf", f"paired or none on {hardware.label}: Hugging Face's copy takes one device")
    method, task, source, model = _parts(cfg)
    decoding = Decoding(**config["decode"])
    if method.greedy_only and not decoding.greedy:
        raise ConfigError("decode.mode", decoding.mode, f"greedy: method={method.name} has no sampling mode")
    prompts = task.prompts(source, model.template, config["limit"], config["seed"])
    if not prompts:
        raise ConfigError("task", task.name, "a data source with at least one item")
    checkpoint = model.open()
    arch = architecture(checkpoint)
    _check_shape(model, arch)
    dims = arch.dims(model.name)
    method.check(dims)
    others: list[Prompt] = []
    school: Task = built(cfg, "calibrate") if "calibrate" in config else task
    if isinstance(method, Calibrated):
        pool = school.pool(source, model.template, config["seed"])
        others = apart(prompts, pool, method, others=school is not task)
    elif school is not task:
        raise ConfigError("task@calibrate", school.name, f"no task: method={method.name} does not calibrate")
    asked = limits([*prompts, *others], decoding.max_new_tokens, task.max_new_tokens)
    decoding = Decoding(**config["decode"] | {"max_new_tokens": max(asked)})
    every = encode_all([*prompts, *others], asked, model, checkpoint, arch.context)
    encoded = every[: len(prompts)]
    samples = [Sample(e.ids, p.domain) for e, p in zip(every[len(prompts) :], others)]
    needed = max(len(e.ids) + new for e, new in zip(every, asked))
    read = zip(every, [*prompts, *others])
    data = hashlib.sha256("".join(e.sha256 + p.reference for e, p in read).encode()).hexdigest()
    spread = len(set(hardware.devices)) > 1
    backend = select(hardware.devices[0], hardware.dtype, hardware.kernels, hardware.isa, spread)
    parts = (hardware.label, hardware.threads, hardware.gpu_names(), provenance.cpu_model(), backend.arithmetic)
    machine = "|".join(map(str, parts))
    identity = config | {"task_version": task.version, "weights": _weights_id(checkpoint), "machine": machine}
    origin = Origin(
        Path(config["runs_dir"]) / SEARCHES, dims.name, identity["weights"], school.name, hardware.dtype_name, machine,
        config["seed"],
    )  # fmt: skip
    code = provenance.code_hash([inspect.getfile(type(part)) for part in (method, task)])
    key = provenance.content_key(identity, code, data, exclude=UNRECORDED)
    name = f"{dims.name}-{method.name}-{task.name}-{key[:10]}"
    fingerprints = {
        spec.name: source.fingerprint(spec)
        for part in dict.fromkeys((task, school))
        for spec in part.files(model.template)
    }
    return Plan(
        config, hardware, backend, decoding, method, task, prompts, encoded, asked, samples, checkpoint,
        model.rehearsal, dims, origin, min(needed, arch.context), fingerprints, key, Path(config["runs_dir"]) / name,
    )  # fmt: skip


def _check_options(config: dict[str, Any]) -> None:
    for name in config:
        if name not in KNOWN:
            raise ConfigError(name, config[name], f"no option; those are {', '.join(KNOWN)}")
    for name, kind in OPTIONS.items():
        if name not in config:
            raise ConfigError(name, MISSING, GIVEN)
        checked(name, kind, config[name])
    for name, table in TABLES.items():
        arguments(name, table, config.get(name))
    Tracking(**config["wandb"])
    if not _has_variant(config):
        raise ConfigError("variant", config["variant"], "null: no prompt format of this task goes by a name")
    arms_of(config["baseline"])
    if config.get("minutes") is not None:
        raise ConfigError("minutes", config["minutes"], "null but in a sweep of experiments (-m experiment=NAME)")


def _parts(cfg: DictConfig) -> tuple[Method, Task, DataSource, ModelSource]:
    method, task, source, model = (built(cfg, group) for group in ("method", "task", "data", "model"))
    for group, part in (("model", model), ("method", method), ("task", task)):  # which name the record's folder
        checked(f"{group}.name", Name, part.name)
    return method, task, source, model


def _check_shape(model: ModelSource, arch: Shape) -> None:
    """What is said of a model without its weights (`dry=true`, replay) is said of this one."""
    differing = [name for name, size in (model.shape or {}).items() if getattr(arch, name, None) != size]
    if differing:
        there = ", ".join(f"{name} {getattr(arch, name, 'unknown')}" for name in differing)
        raise ConfigError("model.shape", model.shape, f"the sizes of its checkpoint: {there}")


def _has_variant(config: dict[str, Any]) -> bool:
    task = config.get("task")
    given = task if isinstance(task, dict) else {}
    parts = given.get("parts")
    made = (given, *parts.values()) if isinstance(parts, dict) else (given,)
    return config["variant"] is None or any("variant" in part for part in made if isinstance(part, dict))


def _may_be_folder(path: Path) -> bool:
    """Whether it is one, or can be made below one."""
    return os.path.isdir(next(one for one in (path, *path.absolute().parents) if os.path.exists(one)))


def _weights_id(checkpoint: Checkpoint) -> str:
    """Identity of a checkpoint: its config, the names and sizes of its files, and what is in those that are small."""
    found = hashlib.sha256(checkpoint.config.to_json_string().encode())
    for file in sorted(set(checkpoint.shards.values())):
        size = file.stat().st_size
        found.update(f"{file.name}:{size}".encode() + (file.read_bytes() if size < SMALL_BYTES else b""))
    return found.hexdigest()[:16]
