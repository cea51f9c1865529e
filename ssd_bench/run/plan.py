"""A plan: all checks of a run before anything large is loaded."""

from __future__ import annotations

import hashlib
import inspect
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from ssd_bench.conf import plug_ins_chosen
from ssd_bench.contract.method import Method, Origin, Sample
from ssd_bench.contract.optional import Calibrated, Stateful
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.task import Examined, Prompt, Task
from ssd_bench.data.prompting import Encoded
from ssd_bench.data.prompts import calibration_prompts, encode_all, positions_needed
from ssd_bench.engine import lossless
from ssd_bench.engine.sampling import Decoding
from ssd_bench.errors import ConfigError, naming
from ssd_bench.model.backend import Backend, select
from ssd_bench.model.checkpoint import Checkpoint, ModelSource
from ssd_bench.model.weights import architecture, declared_architecture
from ssd_bench.paths import local_path
from ssd_bench.plug_ins import PlugIn, plug_ins_with_code
from ssd_bench.records import provenance
from ssd_bench.records.contents import check_finite, contents
from ssd_bench.records.reader import is_complete
from ssd_bench.records.schema import arms_of
from ssd_bench.run.hardware import Hardware
from ssd_bench.run.options import Parts, resolve

COMMAND = "python -m ssd_bench "
SEARCHES, SHARDS = "searches", ".shards"  # folders in runs_dir: results of offline searches, parts of runs
FAULTS = 5  # most faults of a file that a warning names
UNRECORDED = ("runs_dir", "force", "wandb", "dry", "minutes", "retry", "shard", "model.revision", "hardware.exclusive")
"""Options that do not change what is measured; a revision's contents are hashed instead of its name."""


WorkItem = tuple[int, int]
"""Index of a prompt, and number of the repeat."""


@dataclass(frozen=True)
class Shard:
    """One job's share of a run's prompts: prompt i belongs to shard number i mod `of` + 1."""

    number: int
    of: int

    def share(self, items: Sequence[WorkItem]) -> list[WorkItem]:
        """Return the shard's work items."""
        return [(index, repeat) for index, repeat in items if index % self.of == self.number - 1]

    def folder(self, run_dir: Path) -> Path:
        """Return the folder of the shard's partial record (readers ignore it)."""
        return run_dir.parent / SHARDS / run_dir.name / f"{self.number}of{self.of}"


@dataclass(frozen=True)
class PlannedPrompts:
    """Prompts of a run, as the model reads them.

    Attributes:
        encoded: token ids of each prompt; of a conversation, of its first turn.
        new_tokens: most new tokens of an answer, per prompt.
        samples: prompts for search or calibration, not evaluated.
        context: positions of the longest sequence, at most the model's.
    """

    items: Sequence[Prompt]
    encoded: Sequence[Encoded]
    new_tokens: Sequence[int]
    samples: Sequence[Sample]
    context: int

    @property
    def shortest(self) -> Encoded:
        """The prompt with the fewest tokens."""
        return min(self.encoded, key=lambda prompt: len(prompt.ids))


@dataclass(frozen=True)
class PlannedModel:
    """A checkpoint that was checked and not loaded: sizes by the weights, and whether this project trained it."""

    checkpoint: Checkpoint
    dims: ModelDims
    toy: bool


@dataclass(frozen=True)
class PlannedMachine:
    """Devices of a run, and their backend."""

    hardware: Hardware
    backend: Backend

    @property
    def name(self) -> str:
        """Devices, arithmetic, and on a CPU its model and threads; fixed when a run is resumed.

        On GPUs, the CPU and its threads are provenance only.
        """
        hardware = self.hardware
        host = () if hardware.gpu_names() else (hardware.threads, provenance.cpu_model())
        return "|".join(map(str, (hardware.label, hardware.gpu_names(), *host, self.backend.arithmetic)))

    @property
    def tie_tolerance(self) -> float:
        """Top-2 logit gap up to which a different token counts as rounding."""
        kinds = self.backend.arithmetic.named()
        return lossless.tolerance(str(kinds["activations"]), str(kinds["inputs"]), self.hardware.dtype_name)


@dataclass(frozen=True)
class Identity:
    """Identity of a record and its place on disk.

    Attributes:
        content_key: hash of everything that determines the record's content.
        fingerprints: data set -> identity of its content.
        shard: this job's; None: the whole run.
        sample: number of the config's first prompts in the run; None: all.
    """

    content_key: str
    fingerprints: dict[str, str]
    run_dir: Path
    shard: Shard | None
    sample: int | None = None

    @property
    def folder(self) -> Path:
        """Folder of this job's output."""
        return self.run_dir if self.shard is None else self.shard.folder(self.run_dir)


@dataclass(frozen=True)
class Plan:
    """A run that passed every check; nothing large is loaded yet.

    Attributes:
        config: the resolved options.
        origin: the run, as its searches store it.
        warnings: known before the run.
    """

    config: dict[str, Any]
    method: Method
    task: Task
    decoding: Decoding
    prompts: PlannedPrompts
    model: PlannedModel
    machine: PlannedMachine
    identity: Identity
    origin: Origin
    plug_ins: tuple[PlugIn, ...]
    warnings: tuple[str, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms that decode each prompt."""
        return arms_of(self.config["baseline"])

    @property
    def answering_arm(self) -> str:
        """Arm whose answers later turns contain: AR, or the only arm."""
        return "ar" if "ar" in self.arms else "method"

    @property
    def run_items(self) -> list[WorkItem]:
        """All work items of the run, in stream order."""
        return [(i, repeat) for repeat in range(self.config["repeats"]) for i in range(len(self.prompts.items))]

    @property
    def work_items(self) -> list[WorkItem]:
        """Work items of this job, in stream order."""
        shard = self.identity.shard
        return self.run_items if shard is None else shard.share(self.run_items)

    def first(self, count: int) -> Plan:
        """Return the plan of the first prompts, with the same calibration prompts and cache length."""
        prompts = self.prompts
        if count >= len(prompts.items):
            return self
        first = {name: getattr(prompts, name)[:count] for name in ("items", "encoded", "new_tokens")}
        return replace(self, prompts=replace(prompts, **first), identity=replace(self.identity, sample=count))

    def is_recorded(self) -> bool:
        """Return whether the run is on record and `force` does not repeat it."""
        return not self.config["force"] and is_complete(self.identity.run_dir, self.identity.content_key)


def plan(cfg: DictConfig, arguments: Sequence[str] = (), chosen: Mapping[str, Any] | None = None) -> Plan:
    """Compose and check a run and tokenise its prompts, without loading weights.

    Args:
        arguments: of the command line, for provenance.
        chosen: config group -> its choice, for plug-ins without code; None: only plug-ins with code are recorded.

    Raises:
        ConfigError: an invalid option, file or environment.
    """
    # 1) Options and the objects that they name; no model is opened.
    config = resolve(cfg)
    runs_dir = local_path("runs_dir", config["runs_dir"])
    parts = Parts.of(cfg)
    method, task, model = parts.method, parts.task, parts.model
    hardware = Hardware.of(**config["hardware"])
    _check_modes(config["baseline"], hardware, decoding := Decoding(**config["decode"]), method)
    prompts = task.prompts(parts.source_of(task), model.prompting.form, config["limit"], config["seed"])
    if not prompts:
        raise ConfigError("task", task.name, "a data source with at least one item")
    systems = {option: model.prompting.with_system(text, option) for option, text in parts.systems().items()}
    # 2) Checks that need no weights come first, so that a refused model of the hub is not downloaded.
    checkpoint = model.open()
    for option, template in systems.items():
        template.check_heard(checkpoint.tokenizer, option)
    arch = declared_architecture(checkpoint)
    model.check_shape(arch)
    method.check(stated := arch.dims(model.name))
    all_prompts = [*prompts, *_calibration_prompts(parts, prompts, config["seed"])]
    requested_tokens = [decoding.max_new_tokens or p.max_new_tokens or task.max_new_tokens for p in all_prompts]
    decoding = Decoding(**config["decode"] | {"max_new_tokens": max(requested_tokens)})
    all_encoded = encode_all(all_prompts, requested_tokens, model, checkpoint, arch.context)
    samples = [Sample(e.ids, p.domain) for e, p in zip(all_encoded, all_prompts)][len(prompts) :]
    triples = zip(all_prompts, all_encoded, requested_tokens)
    longest = max(positions_needed(*triple, model, checkpoint) for triple in triples)
    shard, several = _shard(config, method, len(prompts)), len(set(hardware.devices)) > 1
    backend = select(hardware.devices[0], hardware.dtype, hardware.kernels, hardware.isa, several)
    machine = PlannedMachine(hardware, backend)
    # 3) Weights files, and the key of everything that determines the record.
    dims, weights = _dims(model, checkpoint, method, stated), _weights_id(checkpoint, hardware.dtype)
    determining = config | {"task_version": task.version, "weights": weights, "machine": machine.name}
    plug_ins = plug_ins_with_code(config)
    files = {Path(inspect.getfile(type(part))) for part in (method, task)}
    code = provenance.code_hash(files.union(*map(provenance.plug_in_sources, plug_ins)))
    key = provenance.content_key(determining, code, _data_id(all_prompts, all_encoded), exclude=UNRECORDED)
    searching = (parts.calibration_task.name, hardware.dtype_name, machine.name, config["seed"])
    run_dir = runs_dir / f"{dims.name}-{method.name}-{task.name}-{key[:10]}"
    encoded, new_tokens = all_encoded[: len(prompts)], requested_tokens[: len(prompts)]
    return Plan(
        config=config,
        method=method,
        task=task,
        decoding=decoding,
        prompts=PlannedPrompts(prompts, encoded, new_tokens, samples, min(longest, arch.context)),
        model=PlannedModel(checkpoint, dims, model.toy),
        machine=machine,
        identity=Identity(key, _fingerprints(parts), run_dir, shard),
        origin=Origin(runs_dir / SEARCHES, dims.name, weights, *searching, COMMAND + shlex.join(arguments)),
        plug_ins=tuple(dict.fromkeys((*plug_ins, *plug_ins_chosen(chosen or {})))),
        warnings=tuple(_warnings(parts, checkpoint)),
    )


def _check_modes(baseline: str, hardware: Hardware, decoding: Decoding, method: Method) -> None:
    if baseline == "hf" and len(set(hardware.devices)) > 1:
        expected = f"paired or none on {hardware.label}: Hugging Face's copy of the model needs a single device"
        raise ConfigError("baseline", "hf", expected)
    if method.greedy_only and not decoding.greedy:
        raise ConfigError("decode.mode", decoding.mode, f"greedy: method={method.name} has no sampling mode")


def _fingerprints(parts: Parts) -> dict[str, str]:
    return {
        spec.name: parts.source_of(task).fingerprint(spec)
        for task in dict.fromkeys((parts.task, parts.calibration_task))
        for spec in task.files(parts.model.prompting.form)
    }


def _calibration_prompts(parts: Parts, prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    if not isinstance(parts.method, Calibrated):
        return []
    separate = parts.calibration_task is not parts.task
    with naming("task", "calibrate" if separate else "task"):
        pool = parts.calibration_task.pool(parts.source_of(parts.calibration_task), parts.model.prompting.form, seed)
        return calibration_prompts(prompts, pool, parts.method, separate=separate)


def _dims(model: ModelSource, checkpoint: Checkpoint, method: Method, stated: ModelDims) -> ModelDims:
    """Return the model's sizes by its weights; weights on the hub are downloaded now.

    The sizes stated in config.json may differ: only the weights tell whether the LM head is tied.
    """
    arch = architecture(checkpoint)
    model.check_shape(arch)
    dims = arch.dims(model.name)
    if dims != stated:
        method.check(dims)
    return dims


def _warnings(parts: Parts, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the warnings known before the run; one per file with unusable rows, which this run does not need."""
    sources = {id(source): source for source in (parts.source_of(parts.task), parts.source_of(parts.calibration_task))}
    for source in sources.values():
        for file, faults in source.unusable().items() if isinstance(source, Examined) else ():
            if faults:
                examples = "; ".join(map(str, faults[:FAULTS]))
                remainder = f"; and {len(faults) - FAULTS} more" if len(faults) > FAULTS else ""
                count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
                yield f"{count} in rows of {file} that this run does not use: {examples}{remainder}"
    yield from checkpoint.unapplied_settings()
    yield from parts.model.prompting.date_warning(checkpoint.tokenizer)


def _data_id(prompts: Sequence[Prompt], encoded: Sequence[Encoded]) -> str:
    """Return the identity of a run's items: everything decoded, scored, part of a seed, or shown in tables."""
    items = [
        (p.id, p.domain, e.sha256, p.reference, [(turn.text, turn.reference) for turn in p.turns])
        for p, e in zip(prompts, encoded, strict=True)
    ]
    return hashlib.sha256(json.dumps(items).encode()).hexdigest()


def _shard(config: dict[str, Any], method: Method, prompts: int) -> Shard | None:
    """Return the shard; refuse it where the order of prompts matters, or without a prompt."""
    if (text := config.get("shard")) is None:
        return None
    if isinstance(method, Stateful):
        raise ConfigError("shard", text, f"null: method={method.name} learns from earlier prompts")
    if "parts" in config["task"]:
        raise ConfigError("shard", text, "null: the prompts of a stream have an order")
    shard = Shard(*map(int, text.split("/")))
    if shard.of > prompts:
        raise ConfigError("shard", text, f"at most {prompts} shards, the number of prompts")
    return shard


def _weights_id(checkpoint: Checkpoint, dtype: torch.dtype) -> str:
    """Return the identity of a checkpoint: its config, EOS ids, and its files' names and contents, once checked."""
    files = contents(checkpoint.shards.values())
    check_finite(files, dtype)
    digest = hashlib.sha256(f"{checkpoint.config.to_json_string()}{sorted(checkpoint.eos_ids)}".encode())
    for file, content in files.items():
        digest.update(f"{file.name}:{content.sha256}".encode())
    return digest.hexdigest()[:16]
