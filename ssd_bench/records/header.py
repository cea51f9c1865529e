"""Header of a record: run.json as a typed object.

Readers of records take headers from here. A missing or null key has its field's default; unknown keys are ignored; a
value of another type is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from ssd_bench.contract.generation import Work
from ssd_bench.cost.latency import MEASURED, Latency
from ssd_bench.errors import ConfigError, brief
from ssd_bench.records.files import read_header
from ssd_bench.records.schema import DIGESTS
from ssd_bench.records.typed import check_type, field_types


@dataclass(frozen=True)
class RecordedModel:
    """The model that ran, and the arithmetic and threads that ran it.

    Attributes:
        name: name in tables, as in `model=NAME`.
        n_layers: L, blocks of the model (2L sublayers).
        n_params: number of parameters.
        context: most positions of a sequence.
        dtype: dtype of weights and cache, such as bfloat16.
        device: cpu, or a text that begins with cuda.
        threads: CPU threads.
        arithmetic: precisions and kernels by name.
        weights: digest of the weights.
        commit: commit of the hub that the weights are from.
        lm_head: source of the LM head.
        toy: whether this project trained the model.
        weight_bytes, cache_bytes: memory of the weights and of the cache.
        int8_bytes, int4_bytes: memory of the rounded copies of the weights; None without one.
        cache_rows: positions in the cache.
    """

    name: str = ""
    n_layers: int = 0
    n_params: int | None = None
    context: int | None = None
    dtype: str = ""
    device: str = ""
    threads: int | None = None
    arithmetic: Mapping[str, Any] | None = None
    weights: str = ""
    commit: str | None = None
    lm_head: str | None = None
    toy: bool = False
    weight_bytes: int | None = None
    int8_bytes: int | None = None
    int4_bytes: int | None = None
    cache_bytes: int | None = None
    cache_rows: int | None = None


@dataclass(frozen=True)
class RecordedTask:
    """The task of a run.

    Attributes:
        name: name in tables, as in `task=NAME`.
        metric: name of the headline score; null without one.
        version: version of the task's prompts and scores.
    """

    name: str = ""
    metric: str | None = None
    version: int | None = None


@dataclass(frozen=True)
class RecordedDecoding:
    """The decoding settings of a run (`conf/decode`).

    Attributes:
        mode: greedy: the most likely token; sample: drawn after temperature, top-k and top-p.
        temperature: divisor of the logits.
        top_p: probability of the tokens that are drawn from; 1: all.
        top_k: number of tokens that are drawn from; 0: all.
        max_new_tokens: longest output in tokens.
        reuse_prefix: whether a verification starts from the states that drafting left; null: as in the method's paper.
    """

    mode: Literal["greedy", "sample"] = "greedy"
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None
    reuse_prefix: bool | None = None

    @property
    def greedy(self) -> bool:
        """Whether every token is the most likely one."""
        return self.mode == "greedy"


@dataclass(frozen=True)
class RecordedDevice:
    """The machine of a run.

    Attributes:
        cpu: name of the CPU.
        cores: CPU cores of the process.
        ram_bytes: memory of the machine.
        gpus: names of the GPUs in use.
    """

    cpu: str | None = None
    cores: int | None = None
    ram_bytes: int | None = None
    gpus: Sequence[str] = ()


@dataclass(frozen=True)
class Provenance:
    """Code, packages and machine of a run, as `provenance.collect` gives them.

    Attributes:
        command: command line, without secrets.
        started_at: time of the start, ISO 8601 in UTC.
        code: version of the code: sha256, git_sha, git_dirty.
        python: version of Python.
        platform: operating system.
        packages: version of every package that matters, by name.
        plug_ins: plug-ins that the run used: distribution, version, module, sha256 of the sources.
        device: the machine.
    """

    command: str = ""
    started_at: str = ""
    code: Mapping[str, Any] | None = None
    python: str = ""
    platform: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    plug_ins: Sequence[Mapping[str, str]] = ()
    device: RecordedDevice = RecordedDevice()


@dataclass(frozen=True)
class RecordedSearch:
    """A search that the preparation ran or reused.

    Attributes:
        name: name of the search.
        evaluations: number of evaluated layer sets.
        new: number of those that this run evaluated.
        seconds: time of all evaluations, including those of earlier runs.
    """

    name: str = ""
    evaluations: int = 0
    new: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class RunHeader:
    """Header of a record, finished or not.

    Attributes:
        schema_version: version of the format of records.
        run_id: name of the run, unique in its folder.
        content_key: digest of configuration, code and data; equal for runs of equal content.
        status: `complete`, `running`, `failed`, `stopped`, or `shard` (a finished part of a run).
        command: command line of the run.
        config: the composed config.
        model: the model that ran.
        method: name of the method, as in `method=NAME`.
        task: the task.
        decode: the decoding settings.
        seed: seed of the run.
        provenance: code, packages and machine.
        searches: searches of the preparation.
        warnings: conditions that may invalidate a number, as sentences.
        finished_at: time of the end, ISO 8601 in UTC.
        caveat: restriction of the method that every report shows.
        data: fingerprint of every data file.
        domains: domain of every prompt, in stream order.
        sample: number of first prompts of the config that a reproduction ran again; None: all.
        tie_tolerance: largest gap of logits of a near-tie.
        latency: latency profile; None without one.
        scores: scores of the task, by arm and name.
        load_ms, profile_ms, prepare_ms, warmup_ms: times before the first prompt.
        prepare_work: work of the preparation in this run (not that of searches that it reused).
        base_bytes: memory of the process before it loaded the model.
        others_share: share of the CPU cores that other processes used.
        concurrent_runs: runs that were measured at the same time: name (`run`), and whether they could use the same
            cores or GPU (`shares`).
        wall_s: time of the whole run; 0 in an unfinished record.
        hf: class, attention, weight bytes and time to load of the Hugging Face arm; empty without this arm.
        shards: provenance, profile, model and times of every shard; empty for a run in one part.
        digests: SHA-256 of every table's file.
        resumed: times at which the run was continued.
        error: reason of the end of a failed or stopped run.
    """

    schema_version: int = 0
    run_id: str = ""
    content_key: str = ""
    status: str = ""
    command: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    model: RecordedModel = RecordedModel()
    method: str = ""
    caveat: str | None = None
    task: RecordedTask = RecordedTask()
    data: Mapping[str, str] = field(default_factory=dict)
    domains: Sequence[str] = ()
    sample: int | None = None
    decode: RecordedDecoding = RecordedDecoding()
    tie_tolerance: float | None = None
    seed: int | None = None
    provenance: Provenance = Provenance()
    latency: Latency | None = None
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    searches: Sequence[RecordedSearch] = ()
    load_ms: float | None = None
    profile_ms: float | None = None
    prepare_ms: float | None = None
    warmup_ms: float | None = None
    prepare_work: Sequence[Work] = ()
    base_bytes: int | None = None
    others_share: float | None = None
    concurrent_runs: Sequence[Mapping[str, Any]] = ()
    wall_s: float = 0.0
    warnings: Sequence[str] = ()
    hf: Mapping[str, Any] = field(default_factory=dict)
    shards: Sequence[Mapping[str, Any]] = ()
    digests: Mapping[str, str] = field(default_factory=dict, metadata={"key": DIGESTS})
    resumed: Sequence[str] = ()
    finished_at: str = ""
    error: str = ""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> RunHeader:
        """Return the header with the content of a run.json.

        Raises:
            ConfigError: a value has another type than its key; names the key.
        """
        check_type("", content, cls)
        check_type("config.repeats", (content.get("config") or {}).get("repeats"), int | None)
        parts = {
            "latency": _latency(content.get("latency") or {}),
            "prepare_work": _work(content.get("prepare_work") or ()),
            "searches": [_build(RecordedSearch, search) for search in content.get("searches") or ()],
        }
        header: RunHeader = _build(cls, {**content, **parts})
        return header

    @classmethod
    def read(cls, run_dir: Path) -> RunHeader:
        """Read the header of a run, complete or not.

        Raises:
            ConfigError: run.json is missing, damaged, of a newer schema, or has a value of another type; names its
                path.
        """
        return cls.of_file(read_header(run_dir), run_dir)

    @classmethod
    def of_file(cls, content: Mapping[str, Any], run_dir: Path) -> RunHeader:
        """Return the header as `of`, with errors that name the file."""
        try:
            return cls.of(content)
        except ConfigError as error:
            raise error.with_note(f"; in {run_dir / 'run.json'}") from error

    @property
    def profiled(self) -> bool:
        """Whether the record has a profile of its own machine, of passes over several nodes."""
        return self.latency is not None and self.latency.source == MEASURED and bool(self.latency.passes)

    def options(self, group: str) -> Mapping[str, Any]:
        """Return the options of a group of the config, such as `method`; empty where the run has none."""
        options = self.config.get(group)
        return options if isinstance(options, Mapping) else {}  # another program may record a name

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the method."""
        return {name: value for name, value in self.options("method").items() if name not in ("_target_", "name")}

    @property
    def hardware(self) -> dict[str, Any]:
        """Properties that comparable timings share: device, arithmetic, GPUs; on a CPU also its model and threads."""
        model, device = self.model, self.provenance.device
        on_gpu = model.device.startswith("cuda")
        return {
            "device": model.device,
            "threads": None if on_gpu else model.threads,
            "arithmetic": model.arithmetic,
            "cpu": None if on_gpu else device.cpu,
            "cores": None if on_gpu else device.cores,
            "gpus": device.gpus,
        }

    @property
    def device_name(self) -> str:
        """Name of the device for a reader: the GPUs, or the CPU's model."""
        gpus = self.provenance.device.gpus
        if gpus and not self.model.device.startswith("cpu"):
            return ", ".join(gpus)
        return str(self.hardware["cpu"] or self.model.device)

    @property
    def machine_name(self) -> str:
        """The device, with the compiled kernels' instruction level on a CPU: processors of one name differ in it."""
        isa = (self.model.arithmetic or {}).get("isa")
        return f"{self.device_name} ({isa})" if isa else self.device_name


def _latency(stored: Mapping[str, Any]) -> Latency | None:
    """Return a stored profile; None with missing or unknown times, which cannot be replayed."""
    try:
        return Latency.read(stored)
    except (TypeError, ValueError):
        return None


def _work(stored: Sequence[Mapping[str, Any]]) -> list[Work]:
    try:
        return [Work(**entry) for entry in stored]
    except TypeError as error:
        names = ", ".join(part.name for part in fields(Work))
        raise ConfigError("prepare_work", brief(stored), f"objects with the keys {names}") from error


def _build(kind: Any, content: Mapping[str, Any]) -> Any:
    """Build a dataclass from its checked JSON object; missing or null values have the defaults."""
    values: dict[str, Any] = {}
    for part, (key, hint) in zip(fields(kind), field_types(kind).items(), strict=True):
        if (value := content.get(key)) is not None:
            values[part.name] = _build(hint, value) if is_dataclass(hint) else value
    return kind(**values)
