"""One run: from a plan to a measured record."""

from __future__ import annotations

import hashlib
import math
import random
import shlex
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from methods.ar import AR
from ssd_bench.core import lossless
from ssd_bench.core.engine import SCRATCH, Engine, Generation
from ssd_bench.core.load import LoadWatch
from ssd_bench.core.method import Illustrated, Method, Qualified, Stateful
from ssd_bench.core.probe import ModelProbe
from ssd_bench.core.sampling import Decoding
from ssd_bench.cost import profiling
from ssd_bench.cost.latency import Latency
from ssd_bench.data.prompting import Encoded, encode_turn, scored_text
from ssd_bench.errors import ConfigError
from ssd_bench.hardware import lasting_buffers
from ssd_bench.hugging_face import Apart
from ssd_bench.metrics import summarise
from ssd_bench.model.checkpoint import cache_dir
from ssd_bench.model.kv_cache import BUCKET
from ssd_bench.neighbours import Neighbours
from ssd_bench.plan import Plan
from ssd_bench.progress import Progress
from ssd_bench.records import provenance
from ssd_bench.records.files import save_arrays
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.reader import load_run
from ssd_bench.records.schema import PromptRecord, PromptRow, StepRow
from ssd_bench.records.writer import SHARD, RunWriter, clear_leftovers
from ssd_bench.shards import clear, gathered, recorded
from ssd_bench.stopping import Stopping
from ssd_bench.task import Prompt
from ssd_bench.tracking import Tracker

COMMAND = "python -m ssd_bench "
WARMUP_TOKENS = 16


def execute(plan: Plan, wait: bool = True) -> Path | None:
    """Run a plan, or resume it, or find it done; returns the record's folder, None while shards of it are not done.

    Args:
        wait: for another process that runs it, and then find it done.

    Raises:
        Held: another process runs it, and is not to be waited for.
        Stopped: the system asked for it; the prompt in flight is finished first.
    """
    unpacked_folder(plan.run_dir)  # what is packed beside it is there before anything is added
    done = f"already on record, not repeated (force=true repeats it): {plan.run_dir}"
    if recorded(plan):
        print(done)
        clear(plan)
        clear_leftovers(plan.run_dir)
        return plan.run_dir
    for warning in plan.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    stopping, folder = Stopping(), plan.folder(plan.shard)
    with stopping.listening(), RunWriter(folder, _header(plan), fresh=plan.config["force"], wait=wait) as writer:
        if recorded(plan):  # by another process, which was waited for
            print(done)
        elif writer.header["status"] != SHARD or {*plan.units(plan.shard)} - writer.done:
            with Neighbours(plan.run_dir.name, plan.hardware) as beside, _third_arm(plan) as stock:
                _measure(plan, writer, stock, stopping, beside)
    if plan.shard is None or gathered(plan, lambda made: _scores(plan, made)):
        return plan.run_dir
    print(f"shard {plan.shard.name} is done; the record is made when all of them are: {folder.parent}")
    return None


def _third_arm(plan: Plan) -> AbstractContextManager[Apart | None]:
    """Hugging Face `generate`, loaded before anything else, where the run has it."""
    if "hf" not in plan.arms:
        return nullcontext()
    checkpoint = plan.checkpoint
    return Apart(checkpoint.folder, plan.hardware, plan.decoding, checkpoint.eos_ids, plan.context)


def _measure(plan: Plan, writer: RunWriter, stock: Apart | None, stopping: Stopping, beside: Neighbours) -> None:
    begin, base_bytes = time.perf_counter(), psutil.Process().memory_info().rss
    engine = load_engine(plan)
    _check_logits(plan, engine)
    loaded = time.perf_counter()
    engine.probe.latency = latency_of(plan, engine)
    profiled = time.perf_counter()
    engine.probe.origin = plan.origin
    plan.method.prepare(engine.probe, plan.samples)
    prepared = time.perf_counter()
    writer.header["latency"] = asdict(engine.probe.latency)
    _warm_up(plan, engine, stock)
    warm = time.perf_counter()
    state = writer.last_state()
    if state is not None and isinstance(plan.method, Stateful):
        plan.method.restore(state)
    waiting, watch = [unit for unit in plan.units(plan.shard) if unit not in writer.done], LoadWatch()
    tracker = Tracker(plan.config["wandb"], plan.run_dir, plan.config)
    beside.look()
    with Progress(len(waiting)) as progress:
        for index, repeat in waiting:
            with stopping.finishing():
                records = _unit(plan, engine, stock, index, repeat, progress)
                beside.look()
                state = plan.method.state() if isinstance(plan.method, Stateful) else None
                writer.add(index, repeat, records, state)
                tracker.log(records)
                progress.done(plan.prompts[index].id, records)
    if isinstance(plan.method, Illustrated):
        for name, arrays in plan.method.arrays().items():
            save_arrays(writer.path / f"{name}.npz", arrays)
    cache = engine.cache  # as it has grown
    memory = {"weight_bytes": engine.decoder.weights.nbytes, "cache_bytes": cache.nbytes, "cache_rows": cache.rows}
    finish = writer.finish if plan.shard is None else writer.finish_shard
    finish(
        {
            "latency": writer.header["latency"], "model": writer.header["model"] | memory,
            "scores": _scores(plan, writer),
            "searches": plan.origin.searches,
            "load_ms": (loaded - begin) * 1e3, "profile_ms": (profiled - loaded) * 1e3,
            "prepare_ms": (prepared - profiled) * 1e3, "warmup_ms": (warm - prepared) * 1e3,
            "base_bytes": base_bytes, "others_share": watch.others(), "beside": beside.seen,
            "wall_s": time.perf_counter() - begin, "warnings": _warnings(plan, engine, writer),
        }
        | ({} if stock is None else {"hf": stock.about})
    )  # fmt: skip
    tracker.finish(dict if plan.shard else lambda: summarise(load_run(plan.run_dir)))


def load_engine(plan: Plan, capacity: int | None = None) -> Engine:
    """Load the weights of a plan and make its cache, for the plan's longest sequence or `capacity` positions."""
    hardware = plan.hardware
    torch.set_num_threads(hardware.threads)
    with lasting_buffers():
        decoder = plan.backend.load(plan.checkpoint, hardware.dtype, hardware.devices)
        cache = decoder.new_cache((capacity or plan.context) + SCRATCH)
        # what the prompts need is there before the first is timed; answers longer than a bucket make it grow
        longest = max(len(encoded.ids) for encoded in plan.encoded)
        cache.reserve(cache.capacity if capacity else min(longest + BUCKET, cache.capacity))
    return Engine(decoder, cache, plan.decoding, plan.checkpoint.eos_ids, ModelProbe(decoder, cache))


def _check_logits(plan: Plan, engine: Engine) -> None:
    """Refuse a model that overflows: its weights may be finite where what they give is not.

    Raises:
        ConfigError: the logits after the shortest prompt are not finite.
    """
    encoded = min(plan.encoded, key=lambda one: len(one.ids))
    if not math.isfinite(engine.probe.top2_gap(encoded.ids)):
        allowed = "one in which this model's logits are finite: those of a prompt are not"
        raise ConfigError("hardware.dtype", plan.hardware.dtype_name, allowed)


def _scores(plan: Plan, writer: RunWriter) -> dict[str, dict[str, float]]:
    """Of each arm, the task's scores over all answers of the record, also those from before it was resumed."""
    answers: dict[str, list[tuple[Prompt, str]]] = {}
    for arm, index, turn, text in (found for found in writer.answers() if found[0] != "hf"):
        answers.setdefault(arm, []).append((plan.prompts[index].at(turn), _scored_text(plan, index, turn, text)))
    return {arm: plan.task.scores([p for p, _ in found], [t for _, t in found]) for arm, found in answers.items()}


def _scored_text(plan: Plan, index: int, turn: int, text: str) -> str:
    """Return the text of an answer that the task scores."""
    return scored_text(plan.prompts[index], turn, text, plan.checkpoint.tokenizer, plan.checkpoint.template)


def _unit(
    plan: Plan, engine: Engine, stock: Apart | None, index: int, repeat: int, progress: Progress
) -> list[PromptRecord]:
    """All arms on one prompt; of a conversation on each turn that fits after AR's answers to those before."""
    prompt, checkpoint = plan.prompts[index], plan.checkpoint
    records: list[PromptRecord] = []
    answers: list[str] = []
    for turn in range(len(prompt.said)):
        encoded = plan.encoded[index]
        if turn:
            encoded = encode_turn(prompt, answers, checkpoint.tokenizer, checkpoint.template)
            if len(encoded.ids) >= plan.context:
                break
        records += _turn(plan, engine, stock, Asked(index, repeat, turn, encoded), progress)
        answers.append({record.prompt.arm: record.prompt.text for record in records}[plan.answering])
    return records


@dataclass(frozen=True)
class Asked:
    """What is decoded by every arm: a prompt, of a conversation with what was said before."""

    index: int
    repeat: int
    turn: int
    encoded: Encoded


def _turn(plan: Plan, engine: Engine, stock: Apart | None, asked: Asked, progress: Progress) -> list[PromptRecord]:
    """All arms, in random (seeded) order; the method's record carries the audit."""
    names, which = sorted(plan.arms), f":{asked.turn}" if asked.turn else ""
    random.Random(f"{plan.config['seed']}:{asked.repeat}:{asked.index}{which}").shuffle(names)
    seed = _prompt_seed(plan.config["seed"], plan.prompts[asked.index].id + which, asked.repeat)
    ids, most = asked.encoded.ids, plan.new_tokens[asked.index]
    made = {}
    for name in names:
        if name == "hf":
            assert stock is not None, "a run with this arm has loaded it"
            made[name] = stock.generate(ids, seed, most)
        else:
            method: Method = plan.method if name == "method" else AR()
            made[name] = engine.generate(method, ids, seed, progress.token, most)
    verdict = None
    if "ar" in made and plan.decoding.greedy:
        reference = made["ar"].output

        def gap_at(position: int) -> float:
            return engine.probe.top2_gap([*ids, *reference[:position]])

        verdict = lossless.classify(made["method"].output, reference, gap_at, plan.tie_tolerance)
    records = [
        _record(plan, asked, name, names.index(name), made[name], verdict if name == "method" else None)
        for name in names
    ]
    for record in records:
        if stock is not None and record.prompt.arm == "hf":
            record.prompt.peak_bytes = stock.peak_bytes
    return records


def _record(
    plan: Plan, asked: Asked, arm: str, order: int, made: Generation, verdict: lossless.Verdict | None
) -> PromptRecord:
    prompt, encoded = plan.prompts[asked.index].at(asked.turn), asked.encoded
    where: dict[str, Any] = {"prompt_index": asked.index, "repeat": asked.repeat, "turn": asked.turn, "arm": arm}
    text = plan.checkpoint.text(made.output)
    row = PromptRow(
        **where, prompt_id=prompt.id, domain=prompt.domain, order=order,
        prompt_sha256=encoded.sha256, prompt_len=len(encoded.ids), clipped_tokens=encoded.clipped,
        new_tokens=len(made.output), prefill_ms=made.prefill_ms, decode_ms=made.decode_ms,
        draft_ms=sum(s.draft_ms for s in made.steps), verify_ms=sum(s.verify_ms for s in made.steps),
        policy_ms=sum(s.policy_ms for s in made.steps), peak_bytes=plan.hardware.peak_bytes(),
        finish_reason=made.finish_reason, output_ids=made.output, text=text,
        score=None if arm == "hf" else plan.task.score(prompt, _scored_text(plan, asked.index, asked.turn, text)),
        divergence_index=verdict.index if verdict else None, divergence_gap=verdict.gap if verdict else None,
        lossless=verdict.verdict if verdict else None,
    )  # fmt: skip
    steps = [
        StepRow(
            **where, step=s.index, context_len=s.context_len, layer_set=s.layer_set, window=s.window,
            draft_len=s.draft_len, tree_nodes=s.tree_nodes, accepted_len=s.accepted_len, emitted=s.emitted,
            stop_reason=s.stop_reason, searched=s.searched,
            draft_ms=s.draft_ms, verify_ms=s.verify_ms, policy_ms=s.policy_ms,
            est_alpha=s.estimate.alpha if s.estimate else None,
            est_draft_len=s.estimate.draft_len if s.estimate else None,
            est_tokens_per_s=s.estimate.tokens_per_s if s.estimate else None,
        )
        for s in made.steps
    ]  # fmt: skip
    return PromptRecord(row, steps)


def _header(plan: Plan) -> dict[str, Any]:
    model = {
        "name": plan.dims.name, "n_layers": plan.dims.n_layers, "n_params": plan.dims.n_params,
        "context": plan.dims.context, "dtype": plan.hardware.dtype_name, "device": plan.hardware.label,
        "threads": plan.hardware.threads, "arithmetic": plan.backend.arithmetic.named(),
        "weights": plan.origin.weights, "commit": plan.checkpoint.commit, "lm_head": plan.checkpoint.head,
        "rehearsal": plan.rehearsal,
    }  # fmt: skip
    return {
        "run_id": plan.run_dir.name, "content_key": plan.content_key, "command": COMMAND + shlex.join(sys.argv[1:]),
        "config": plan.config, "model": model, "method": plan.method.name,
        "caveat": plan.method.caveat if isinstance(plan.method, Qualified) else None,
        "task": {"name": plan.task.name, "metric": plan.task.metric, "version": plan.task.version},
        "data": plan.fingerprints, "domains": [prompt.domain for prompt in plan.prompts],
        "decode": asdict(plan.decoding), "tie_tolerance": plan.tie_tolerance, "seed": plan.config["seed"],
        "provenance": provenance.collect(COMMAND + shlex.join(sys.argv[1:]), plan.hardware.gpu_names()),
    }  # fmt: skip


def latency_of(plan: Plan, engine: Engine) -> Latency:
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
        plan.origin.weights, plan.hardware.label, plan.hardware.dtype_name, plan.hardware.threads,
        str(plan.backend.arithmetic), plan.hardware.gpu_names(), provenance.cpu_model(), torch.__version__, reach,
        profiling.VERSION,
    )  # fmt: skip
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return cache_dir() / "latency" / f"{plan.dims.name}-{key}.json"


def _warm_up(plan: Plan, engine: Engine, stock: Apart | None) -> None:
    """Short generations that touch every shape; a copy of the prepared method warms up, so that it learns nothing."""
    short = Decoding(**plan.config["decode"] | {"max_new_tokens": min(WARMUP_TOKENS, max(plan.new_tokens))})
    warm = Engine(engine.decoder, engine.cache, short, engine.eos_ids, engine.probe)
    prompt = min((e.ids for e in plan.encoded), key=len)
    method = deepcopy(plan.method, {id(engine.probe): engine.probe})  # which is the model, and no part of a method
    for _ in range(plan.hardware.warmup):
        for arm in [method, *([AR()] if "ar" in plan.arms else [])]:
            warm.generate(arm, prompt)
        if stock is not None:
            stock.generate(prompt, max_new=short.max_new_tokens)


def _warnings(plan: Plan, engine: Engine, writer: RunWriter) -> list[str]:
    found = list(plan.warnings)
    units = [plan.prompts[index] for index, _ in plan.units(plan.shard)]
    turns = sum(len(prompt.said) for prompt in units)
    if turns > len(units) and (unasked := turns - sum(arm == plan.answering for arm, *_ in writer.answers())):
        found.append(f"{unasked} of {turns} turns were not asked: with the answers before them they do not fit")
    if engine.probe.latency.loaded:
        found.append("the latency profile was measured while other processes used the machine")
    if plan.checkpoint.head_differs:
        found.append(f"the LM head that ran is {plan.checkpoint.head}; transformers does the same")
    if plan.backend.warning:
        found.append(plan.backend.warning)
    return found


def _prompt_seed(seed: int, prompt_id: str, repeat: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{prompt_id}:{repeat}".encode()).digest()[:8], "big") >> 1
