"""One run: from a composed config to a record and a table."""

from __future__ import annotations

import hashlib
import inspect
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from omegaconf import DictConfig, OmegaConf

from methods.ar import AR
from ssd_bench.compose import built
from ssd_bench.core import lossless
from ssd_bench.core.engine import SCRATCH, Engine, Generation
from ssd_bench.core.method import Calibrated, Illustrated, Method, Origin, Sample, Stateful
from ssd_bench.core.probe import ModelProbe
from ssd_bench.core.sampling import Decoding
from ssd_bench.cost import profiling
from ssd_bench.cost.latency import Latency
from ssd_bench.data.prompting import Encoded
from ssd_bench.data.prompts import apart, encode_all, limits
from ssd_bench.errors import ConfigError, LosslessError
from ssd_bench.hardware import Hardware, lasting_buffers
from ssd_bench.metrics import by_domain, summarise
from ssd_bench.model.backends.interface import Ops
from ssd_bench.model.backends.select import select
from ssd_bench.model.checkpoint import Checkpoint, ModelSource, cache_dir
from ssd_bench.model.decoder import Decoder, architecture
from ssd_bench.model.kv_cache import BUCKET
from ssd_bench.model.shape import ModelDims
from ssd_bench.progress import Progress
from ssd_bench.records import provenance
from ssd_bench.records.record import PromptRecord, PromptRow, RunWriter, StepRow, is_complete, load_run, save_arrays
from ssd_bench.report.terminal import run_table
from ssd_bench.task import Prompt, Task
from ssd_bench.tracking import Tracker

COMMAND = "python -m ssd_bench "
WARMUP_TOKENS = 16
SMALL_BYTES = 2**26  # weights that are retrained keep their size; these are read in no time
SEARCHES = "searches"  # folder in runs_dir of what offline searches found
UNRECORDED = ("runs_dir", "force", "wandb")  # options that change nothing that is measured


@dataclass(frozen=True)
class Plan:
    """A run that passed every check; nothing large is loaded yet."""

    config: dict[str, Any]
    hardware: Hardware
    ops: Ops
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
        kinds = self.ops.arithmetic.named()
        return lossless.tolerance(str(kinds["activations"]), str(kinds["inputs"]), self.hardware.dtype_name)

    @property
    def paired(self) -> bool:
        return self.config["baseline"] == "paired"

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
    method, task, source = (built(cfg, group) for group in ("method", "task", "data"))
    model: ModelSource = built(cfg, "model")
    decoding = Decoding(**config["decode"])
    if method.greedy_only and not decoding.greedy:
        raise ConfigError("decode.mode", decoding.mode, f"greedy: method={method.name} has no sampling mode")
    prompts = task.prompts(source, model.template, config["limit"], config["seed"])
    if not prompts:
        raise ConfigError("task", task.name, "a data source with at least one item")
    checkpoint = model.open()
    arch = architecture(checkpoint)
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
    ops = select(hardware.devices[0], hardware.dtype, hardware.kernels, hardware.isa)
    parts = (hardware.label, hardware.threads, hardware.gpu_names(), provenance.cpu_model(), ops.arithmetic)
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
        config, hardware, ops, decoding, method, task, prompts, encoded, asked, samples, checkpoint, model.rehearsal,
        dims, origin, min(needed, arch.context), fingerprints, key, Path(config["runs_dir"]) / name,
    )  # fmt: skip


def execute(plan: Plan) -> Path:
    """Run a plan, or resume it, or find it done; prints the table and returns the record's folder.

    Raises:
        LosslessError: an output differs from AR's beyond rounding; the record is complete all the same.
    """
    if is_complete(plan.run_dir, plan.content_key) and not plan.config["force"]:
        print(f"already on record, not repeated (force=true repeats it): {plan.run_dir}")
    else:
        with RunWriter(plan.run_dir, _header(plan), fresh=plan.config["force"]) as writer:
            _measure(plan, writer)
    run = load_run(plan.run_dir)
    summary = summarise(run)
    print(run_table(summary, by_domain(run)))
    bugs = run.prompts.loc[run.prompts["lossless"] == "bug", "prompt_id"].tolist()
    if bugs:
        raise LosslessError(
            f"not lossless on {', '.join(map(str, bugs))}: the output differs from AR's beyond rounding"
        )
    return plan.run_dir


def _measure(plan: Plan, writer: RunWriter) -> None:
    begin, base_bytes = time.perf_counter(), psutil.Process().memory_info().rss
    engine = load_engine(plan)
    loaded = time.perf_counter()
    engine.probe.latency = _latency(plan, engine)
    profiled = time.perf_counter()
    engine.probe.origin = plan.origin
    plan.method.prepare(engine.probe, plan.samples)
    prepared = time.perf_counter()
    writer.header["latency"] = asdict(engine.probe.latency)
    _warm_up(plan, engine)
    warm = time.perf_counter()
    state = writer.last_state()
    if state is not None and isinstance(plan.method, Stateful):
        plan.method.restore(state)
    waiting = [unit for unit in plan.units() if unit not in writer.done]
    tracker = Tracker(plan.config["wandb"], plan.run_dir, plan.config)
    with Progress(len(waiting)) as progress:
        for index, repeat in waiting:
            records = _unit(plan, engine, index, repeat, progress)
            state = plan.method.state() if isinstance(plan.method, Stateful) else None
            writer.add(index, repeat, records, state)
            tracker.log(records)
            progress.done(plan.prompts[index].id, records)
    if isinstance(plan.method, Illustrated):
        for name, arrays in plan.method.arrays().items():
            save_arrays(plan.run_dir / f"{name}.npz", arrays)
    cache = engine.cache  # as it has grown
    memory = {"weight_bytes": engine.decoder.weight_bytes, "cache_bytes": cache.nbytes, "cache_rows": cache.rows}
    writer.finish(
        {
            "latency": writer.header["latency"], "model": writer.header["model"] | memory,
            "scores": _scores(plan, writer),
            "load_ms": (loaded - begin) * 1e3, "profile_ms": (profiled - loaded) * 1e3,
            "prepare_ms": (prepared - profiled) * 1e3, "warmup_ms": (warm - prepared) * 1e3,
            "base_bytes": base_bytes, "wall_s": time.perf_counter() - begin, "warnings": _warnings(plan, engine),
        }
    )  # fmt: skip
    tracker.finish(lambda: summarise(load_run(plan.run_dir)))


def load_engine(plan: Plan, capacity: int | None = None) -> Engine:
    """Load the weights of a plan and make its cache, for the plan's longest sequence or `capacity` positions."""
    hardware = plan.hardware
    torch.set_num_threads(hardware.threads)
    with lasting_buffers():
        decoder = Decoder.load(plan.checkpoint, hardware.dtype, hardware.devices, plan.ops)
        cache = decoder.new_cache((capacity or plan.context) + SCRATCH)
        # what the prompts need is there before the first is timed; answers longer than a bucket make it grow
        longest = max(len(encoded.ids) for encoded in plan.encoded)
        cache.reserve(cache.capacity if capacity else min(longest + BUCKET, cache.capacity))
    return Engine(decoder, cache, plan.decoding, plan.checkpoint.eos_ids, ModelProbe(decoder, cache))


def _scores(plan: Plan, writer: RunWriter) -> dict[str, dict[str, float]]:
    """Of each arm, the task's scores over all answers of the record, also those from before it was resumed."""
    answers: dict[str, list[tuple[Prompt, str]]] = {}
    for arm, index, text in writer.answers():
        answers.setdefault(arm, []).append((plan.prompts[index], text))
    return {arm: plan.task.scores([p for p, _ in found], [t for _, t in found]) for arm, found in answers.items()}


def _unit(plan: Plan, engine: Engine, index: int, repeat: int, progress: Progress) -> list[PromptRecord]:
    """Both arms on one prompt, in random (seeded) order; the method's record carries the audit."""
    arms: dict[str, Method] = {"method": plan.method} | ({"ar": AR()} if plan.paired else {})
    names = sorted(arms)
    random.Random(f"{plan.config['seed']}:{repeat}:{index}").shuffle(names)
    seed = _prompt_seed(plan.config["seed"], plan.prompts[index].id, repeat)
    ids, most = plan.encoded[index].ids, plan.new_tokens[index]
    made = {name: engine.generate(arms[name], ids, seed, progress.token, most) for name in names}
    verdict = None
    if plan.paired and plan.decoding.greedy:
        reference = made["ar"].output

        def gap_at(position: int) -> float:
            return engine.probe.top2_gap([*ids, *reference[:position]])

        verdict = lossless.classify(made["method"].output, reference, gap_at, plan.tie_tolerance)
    return [
        _record(plan, index, repeat, name, names.index(name), made[name], verdict if name == "method" else None)
        for name in names
    ]


def _record(
    plan: Plan, index: int, repeat: int, arm: str, order: int, made: Generation, verdict: lossless.Verdict | None
) -> PromptRecord:
    prompt, encoded = plan.prompts[index], plan.encoded[index]
    text = str(plan.checkpoint.tokenizer.decode(made.output, skip_special_tokens=True))
    row = PromptRow(
        prompt_index=index, prompt_id=prompt.id, domain=prompt.domain, repeat=repeat, arm=arm, order=order,
        prompt_sha256=encoded.sha256, prompt_len=len(encoded.ids), clipped_tokens=encoded.clipped,
        new_tokens=len(made.output), prefill_ms=made.prefill_ms, decode_ms=made.decode_ms,
        draft_ms=sum(s.draft_ms for s in made.steps), verify_ms=sum(s.verify_ms for s in made.steps),
        policy_ms=sum(s.policy_ms for s in made.steps), peak_bytes=plan.hardware.peak_bytes(),
        finish_reason=made.finish_reason, output_ids=made.output, text=text,
        score=plan.task.score(prompt, text),
        divergence_index=verdict.index if verdict else None, divergence_gap=verdict.gap if verdict else None,
        lossless=verdict.verdict if verdict else None,
    )  # fmt: skip
    steps = [
        StepRow(
            prompt_index=index, repeat=repeat, arm=arm, step=s.index, context_len=s.context_len, layer_set=s.layer_set,
            draft_len=s.draft_len, tree_nodes=s.tree_nodes, accepted_len=s.accepted_len, emitted=s.emitted,
            stop_reason=s.stop_reason, draft_ms=s.draft_ms, verify_ms=s.verify_ms, policy_ms=s.policy_ms,
            est_alpha=s.estimate.alpha if s.estimate else None,
            est_draft_len=s.estimate.draft_len if s.estimate else None,
            est_tokens_per_s=s.estimate.tokens_per_s if s.estimate else None,
        )
        for s in made.steps
    ]  # fmt: skip
    return PromptRecord(row, steps)


def _check_options(config: dict[str, Any]) -> None:
    checks = (
        ("limit", config["limit"] is None or _whole(config["limit"], 1), "at least 1, or null for all"),
        ("repeats", _whole(config["repeats"], 1), "at least 1"),
        ("seed", _whole(config["seed"], 0), "a whole number, 0 or more"),
        ("baseline", config["baseline"] in ("paired", "none"), "paired or none"),
        ("force", isinstance(config["force"], bool), "true or false"),
        ("wandb.mode", config["wandb"]["mode"] in ("disabled", "offline", "online"), "disabled, offline or online"),
        ("variant", _has_variant(config), "null: no prompt format of this task goes by a name"),
        ("runs_dir", isinstance(config["runs_dir"], str) and config["runs_dir"], "a folder"),
    )
    for field, fine, allowed in checks:
        if not fine:
            value = config["wandb"]["mode"] if field == "wandb.mode" else config[field]
            raise ConfigError(field, value, allowed)


def _has_variant(config: dict[str, Any]) -> bool:
    task = config["task"]
    return config["variant"] is None or any("variant" in part for part in (task, *task.get("parts", {}).values()))


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _header(plan: Plan) -> dict[str, Any]:
    model = {
        "name": plan.dims.name, "n_layers": plan.dims.n_layers, "n_params": plan.dims.n_params,
        "context": plan.dims.context, "dtype": plan.hardware.dtype_name, "device": plan.hardware.label,
        "threads": plan.hardware.threads, "arithmetic": plan.ops.arithmetic.named(),
        "weights": _weights_id(plan.checkpoint), "rehearsal": plan.rehearsal,
    }  # fmt: skip
    return {
        "run_id": plan.run_dir.name, "content_key": plan.content_key, "command": COMMAND + shlex.join(sys.argv[1:]),
        "config": plan.config, "model": model, "method": plan.method.name,
        "task": {"name": plan.task.name, "metric": plan.task.metric, "version": plan.task.version},
        "data": plan.fingerprints, "domains": [prompt.domain for prompt in plan.prompts],
        "decode": asdict(plan.decoding), "tie_tolerance": plan.tie_tolerance, "seed": plan.config["seed"],
        "provenance": provenance.collect(COMMAND + shlex.join(sys.argv[1:]), plan.hardware.gpu_names()),
    }  # fmt: skip


def _weights_id(checkpoint: Checkpoint) -> str:
    """Identity of a checkpoint: its config, the names and sizes of its files, and what is in those that are small."""
    found = hashlib.sha256(checkpoint.config.to_json_string().encode())
    for file in sorted(set(checkpoint.shards.values())):
        size = file.stat().st_size
        found.update(f"{file.name}:{size}".encode() + (file.read_bytes() if size < SMALL_BYTES else b""))
    return found.hexdigest()[:16]


def _latency(plan: Plan, engine: Engine) -> Latency:
    """The given profile, or the machine's own, measured once per model x hardware x context (within a factor of two).

    It is kept in the cache folder.
    """
    if plan.hardware.latency is not None:
        return plan.hardware.latency
    return profiling.cached(engine.decoder, engine.cache, _profile_path(plan, engine.cache.rows))


def _profile_path(plan: Plan, rows: int) -> Path:
    """Where the profile of a plan's model on this machine is kept, measured up to `rows` of context."""
    reach = (rows - 1).bit_length()  # a profile of short contexts says little about long ones
    parts = (
        _weights_id(plan.checkpoint), plan.hardware.label, plan.hardware.dtype_name, plan.hardware.threads,
        str(plan.ops.arithmetic), plan.hardware.gpu_names(), provenance.cpu_model(), torch.__version__, reach,
        profiling.VERSION,
    )  # fmt: skip
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return cache_dir() / "latency" / f"{plan.dims.name}-{key}.json"


def _warm_up(plan: Plan, engine: Engine) -> None:
    """Short generations that touch every shape; the method warms up as a copy, so that it learns nothing from them."""
    short = Decoding(**plan.config["decode"] | {"max_new_tokens": min(WARMUP_TOKENS, max(plan.new_tokens))})
    warm = Engine(engine.decoder, engine.cache, short, engine.eos_ids, engine.probe)
    prompt = min((e.ids for e in plan.encoded), key=len)
    method: Method = built(OmegaConf.create(plan.config), "method")
    method.check(plan.dims)
    for _ in range(plan.hardware.warmup):
        for arm in [method, *([AR()] if plan.paired else [])]:
            warm.generate(arm, prompt)


def _warnings(plan: Plan, engine: Engine) -> list[str]:
    found = []
    if engine.probe.latency.loaded:
        found.append("the latency profile was measured while other processes used the machine")
    if (
        plan.hardware.devices[0].type == "cpu"
        and plan.ops.arithmetic.kernels != "native"
        and plan.hardware.kernels == "auto"
    ):
        found.append(
            "compiled CPU kernels are not available here; decoding is slower "
            "(python -m ssd_bench.model.backends says why)"
        )
    return found


def _prompt_seed(seed: int, prompt_id: str, repeat: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{prompt_id}:{repeat}".encode()).digest()[:8], "big") >> 1
