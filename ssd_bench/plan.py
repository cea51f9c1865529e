"""A plan: everything about a run that can be known and refused before anything large is loaded."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from ssd_bench.core import lossless
from ssd_bench.core.method import Calibrated, Method, Origin, Sample, Stateful
from ssd_bench.core.sampling import Decoding
from ssd_bench.data.prompting import Encoded
from ssd_bench.data.prompts import answer_limits, calibration_prompts, encode_all, positions_needed
from ssd_bench.errors import ConfigError, naming
from ssd_bench.hardware import Hardware
from ssd_bench.model.backend import Backend, select
from ssd_bench.model.checkpoint import Checkpoint, ModelSource
from ssd_bench.model.shape import ModelDims
from ssd_bench.model.weights import architecture, declared_architecture
from ssd_bench.options import Parts, resolved
from ssd_bench.paths import local_path
from ssd_bench.records import provenance
from ssd_bench.records.contents import check_finite, contents
from ssd_bench.records.schema import arms_of
from ssd_bench.task import Examined, Prompt, Task

SEARCHES, SHARDS = "searches", ".shards"  # folders in runs_dir: what offline searches found, parts of runs
FAULTS = 5  # of a file that are named where no run stops for them
UNRECORDED = ("runs_dir", "force", "wandb", "dry", "minutes", "retry", "shard", "model.revision", "hardware.exclusive")
"""Options that change nothing that is measured: of a revision what it has counts."""


@dataclass(frozen=True)
class Shard:
    """The prompts of one job of several that share a run: the prompt at i belongs to number i mod `of` + 1."""

    number: int
    of: int

    @classmethod
    def asked(cls, text: str | None) -> Shard | None:
        """Of the option `shard`, NUMBER/OF."""
        return None if text is None else cls(*map(int, text.split("/")))

    @property
    def name(self) -> str:
        return f"{self.number}of{self.of}"

    @property
    def all(self) -> list[Shard]:
        """Itself and its like."""
        return [Shard(number, self.of) for number in range(1, self.of + 1)]


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
    shard: Shard | None
    warnings: tuple[str, ...]

    @property
    def tie_tolerance(self) -> float:
        """The top-2 logit gap up to which a different token counts as rounding."""
        kinds = self.backend.arithmetic.named()
        return lossless.tolerance(str(kinds["activations"]), str(kinds["inputs"]), self.hardware.dtype_name)

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of what decodes each prompt."""
        return arms_of(self.config["baseline"])

    @property
    def answering(self) -> str:
        """The arm whose answers stand in a conversation: AR, or without it the only one."""
        return "ar" if "ar" in self.arms else "method"

    def units(self, shard: Shard | None = None) -> Iterator[tuple[int, int]]:
        """(prompt index, repeat) in stream order; of a shard its own."""
        prompts = range(len(self.prompts))[slice(None) if shard is None else slice(shard.number - 1, None, shard.of)]
        return ((i, repeat) for repeat in range(self.config["repeats"]) for i in prompts)

    def folder(self, shard: Shard | None) -> Path:
        """Of the record, or of a shard's part of it, which no reader takes for a record."""
        return self.run_dir if shard is None else self.run_dir.parent / SHARDS / self.run_dir.name / shard.name


def plan(cfg: DictConfig) -> Plan:
    """Compose, check and tokenise, without loading weights.

    Raises:
        ConfigError: anything that cannot work, with the field, its value and what is allowed.
    """
    config = resolved(cfg)
    runs_dir = local_path("runs_dir", config["runs_dir"])
    parts = Parts.of(cfg)
    method, task, model = parts.method, parts.task, parts.model
    hardware = Hardware.of(**config["hardware"])
    if config["baseline"] == "hf" and len(set(hardware.devices)) > 1:
        raise ConfigError("baseline", "hf", f"paired or none on {hardware.label}: Hugging Face's copy takes one device")
    decoding = Decoding(**config["decode"])
    if method.greedy_only and not decoding.greedy:
        raise ConfigError("decode.mode", decoding.mode, f"greedy: method={method.name} has no sampling mode")
    prompts = task.prompts(parts.source_of(task), model.prompting.form, config["limit"], config["seed"])
    if not prompts:
        raise ConfigError("task", task.name, "a data source with at least one item")
    systems = {option: model.prompting.with_system(text, option) for option, text in parts.systems().items()}
    # Everything that the weights are not needed for comes first: a model of the hub that is refused is not downloaded.
    checkpoint = model.open()
    for option, template in systems.items():
        template.check_heard(checkpoint.tokenizer, option)
    arch = declared_architecture(checkpoint)
    model.check_shape(arch)
    method.check(stated := arch.dims(model.name))
    others = _calibration_prompts(parts, prompts, config["seed"])
    asked = answer_limits([*prompts, *others], decoding.max_new_tokens, task.max_new_tokens)
    decoding = Decoding(**config["decode"] | {"max_new_tokens": max(asked)})
    every = encode_all([*prompts, *others], asked, model, checkpoint, arch.context)
    encoded = every[: len(prompts)]
    samples = [Sample(e.ids, p.domain) for e, p in zip(every[len(prompts) :], others)]
    needed = max(positions_needed(p, e, new, model, checkpoint) for p, e, new in zip([*prompts, *others], every, asked))
    data = _data_id([*prompts, *others], every)
    shard = _shard(config, method, len(prompts))
    backend = select(
        hardware.devices[0], hardware.dtype, hardware.kernels, hardware.isa, len(set(hardware.devices)) > 1
    )
    dims = _dims(model, checkpoint, method, stated)
    weights = _weights_id(checkpoint, hardware.dtype)
    machine = _machine(hardware, backend)
    identity = config | {"task_version": task.version, "weights": weights, "machine": machine}
    origin = Origin(
        runs_dir / SEARCHES, dims.name, weights, parts.school.name, hardware.dtype_name, machine, config["seed"],
    )  # fmt: skip
    code = provenance.code_hash([inspect.getfile(type(part)) for part in (method, task)])
    key = provenance.content_key(identity, code, data, exclude=UNRECORDED)
    name = f"{dims.name}-{method.name}-{task.name}-{key[:10]}"
    fingerprints = {
        spec.name: parts.source_of(part).fingerprint(spec)
        for part in dict.fromkeys((task, parts.school))
        for spec in part.files(model.prompting.form)
    }
    return Plan(
        config, hardware, backend, decoding, method, task, prompts, encoded, asked, samples, checkpoint,
        model.rehearsal, dims, origin, min(needed, arch.context), fingerprints, key, runs_dir / name,
        shard, _unused(parts),
    )  # fmt: skip


def _calibration_prompts(parts: Parts, prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Return the prompts that the method searches or calibrates on; none of them is evaluated."""
    if not isinstance(parts.method, Calibrated):
        return []
    separate = parts.school is not parts.task
    with naming("task", "calibrate" if separate else "task"):
        pool = parts.school.pool(parts.source_of(parts.school), parts.model.prompting.form, seed)
        return calibration_prompts(prompts, pool, parts.method, separate=separate)


def _dims(model: ModelSource, checkpoint: Checkpoint, method: Method, stated: ModelDims) -> ModelDims:
    """Return the sizes of the model that its weights make; of a model from the hub they are downloaded now.

    Args:
        stated: by config.json; whether the head is tied is for the weights to say.

    Raises:
        ConfigError: weights that differ from config.json, or sizes that the model's settings or the method refuse.
    """
    arch = architecture(checkpoint)
    model.check_shape(arch)
    dims = arch.dims(model.name)
    if dims != stated:
        method.check(dims)
    return dims


def _unused(parts: Parts) -> tuple[str, ...]:
    """Return what to tell of rows that cannot be used, by file; a run that needs one of them has stopped by now."""
    sources = {id(source): source for source in (parts.source_of(parts.task), parts.source_of(parts.school))}
    told = []
    for source in sources.values():
        for file, faults in source.unusable().items() if isinstance(source, Examined) else ():
            if faults:
                shown = "; ".join(f"{fault.field}={fault.value!r}: {fault.allowed}" for fault in faults[:FAULTS])
                more = f"; and {len(faults) - FAULTS} more" if len(faults) > FAULTS else ""
                told.append(f"{file}: {len(faults)} faults in rows that this run does not use: {shown}{more}")
    return tuple(told)


def _data_id(prompts: Sequence[Prompt], encoded: Sequence[Encoded]) -> str:
    """Identity of what is read of a run's items: what is decoded, scored, drawn with and shown in tables."""
    told = [
        (p.id, p.domain, e.sha256, p.reference, [(turn.text, turn.reference) for turn in p.turns])
        for p, e in zip(prompts, encoded, strict=True)
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _shard(config: dict[str, Any], method: Method, prompts: int) -> Shard | None:
    """The shard that is asked for, of a run whose prompts may be decoded in any order."""
    shard, said = Shard.asked(config.get("shard")), config.get("shard")
    if shard is not None:
        if isinstance(method, Stateful):
            raise ConfigError("shard", said, f"null: method={method.name} learns from one prompt for the next")
        if "parts" in config["task"]:
            raise ConfigError("shard", said, "null: the prompts of a stream come one after the other")
        if shard.of > prompts:
            raise ConfigError("shard", said, f"of at most {prompts}, as many as there are prompts")
    return shard


def _machine(hardware: Hardware, backend: Backend) -> str:
    """What a run may not change while it is resumed; of a GPU run the CPU and its threads are provenance alone."""
    host = () if hardware.gpu_names() else (hardware.threads, provenance.cpu_model())
    return "|".join(map(str, (hardware.label, hardware.gpu_names(), *host, backend.arithmetic)))


def _weights_id(checkpoint: Checkpoint, dtype: torch.dtype) -> str:
    """Identity of a checkpoint: its config, the ids that end an output, and the names and contents of its files.

    Raises:
        ConfigError: numbers that are not finite in this dtype.
    """
    found = contents(checkpoint.shards.values())
    check_finite(found, dtype)
    named = hashlib.sha256(f"{checkpoint.config.to_json_string()}{sorted(checkpoint.eos_ids)}".encode())
    for file, content in found.items():
        named.update(f"{file.name}:{content.sha256}".encode())
    return named.hexdigest()[:16]
