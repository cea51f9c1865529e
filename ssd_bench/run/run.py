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
from ssd_bench.contract.generation import Generation
from ssd_bench.contract.method import Illustrated, Method, Qualified, Stateful
from ssd_bench.contract.task import Prompt
from ssd_bench.cost import profiling
from ssd_bench.cost.latency import Latency
from ssd_bench.data.prompting import Encoded, encode_turn, scored_text
from ssd_bench.engine import lossless
from ssd_bench.engine.engine import SCRATCH, Engine
from ssd_bench.engine.load import QUIET, LoadWatch
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.engine.sampling import Decoding
from ssd_bench.errors import ConfigError
from ssd_bench.metrics import summarise
from ssd_bench.model.kv_cache import BUCKET
from ssd_bench.paths import cache_dir
from ssd_bench.records import provenance
from ssd_bench.records.files import save_arrays
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.reader import load_run
from ssd_bench.records.schema import PromptRecord, PromptRow, StepRow
from ssd_bench.records.writer import SHARD, RunWriter, clear_leftovers
from ssd_bench.run.hardware import lasting_buffers
from ssd_bench.run.hugging_face import HFProcess
from ssd_bench.run.neighbours import Neighbours
from ssd_bench.run.plan import Plan
from ssd_bench.run.progress import Progress
from ssd_bench.run.shards import clear_shards, is_recorded, merge_shards
from ssd_bench.run.tracking import Tracker
from ssd_bench.run_warnings import new_warnings
from ssd_bench.stopping import Stopping

COMMAND = "python -m ssd_bench "
WARMUP_TOKENS = 16


def execute(plan: Plan, wait: bool = True) -> Path | None:
    """Run a plan, resume it, or find it already recorded.

    Args:
        wait: if another process runs the plan, wait until it is done.

    Returns:
        The record's folder; None while other shards of the run are missing.

    Raises:
        LeaseHeld: another process runs the plan, and `wait` is false.
        Stopped: the system asked this process to end; the prompt in flight is finished first.
    """
    unpacked_folder(plan.run_dir)  # unpack the runs packed in this folder before adding to it
    done = f"already on record, not repeated (force=true repeats it): {plan.run_dir}"
    if is_recorded(plan):
        print(done)
        clear_shards(plan)
        clear_leftovers(plan.run_dir)
        return plan.run_dir
    for warning in new_warnings(plan.warnings):
        print(f"warning: {warning}", file=sys.stderr)
    stopping, folder = Stopping(), plan.folder(plan.shard)
    with stopping.listening(), RunWriter(folder, _header(plan), fresh=plan.config["force"], wait=wait) as writer:
        if is_recorded(plan):  # another process recorded it while this one waited for the lease
            print(done)
        elif writer.header["status"] != SHARD or {*plan.work_items(plan.shard)} - writer.done:
            with Neighbours(plan.run_dir.name, plan.hardware) as neighbours, _load_hf_arm(plan) as hf_arm:
                _measure(plan, writer, hf_arm, stopping, neighbours)
    if plan.shard is None or merge_shards(plan, lambda record: _scores(plan, record)):
        return plan.run_dir
    print(f"shard {plan.shard.name} is done; the record is written once all shards are done: {folder.parent}")
    return None


def _load_hf_arm(plan: Plan) -> AbstractContextManager[HFProcess | None]:
    """Return the arm that runs Hugging Face `generate` (in a process of its own), None for a run without it."""
    if "hf" not in plan.arms:
        return nullcontext()
    checkpoint = plan.checkpoint
    return HFProcess(checkpoint.folder, plan.hardware, plan.decoding, checkpoint.eos_ids, plan.context)


def _measure(
    plan: Plan, writer: RunWriter, hf_arm: HFProcess | None, stopping: Stopping, neighbours: Neighbours
) -> None:
    """Load, profile, prepare and warm up, then decode every pending work item and finish the record."""
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
    _warm_up(plan, engine, hf_arm)
    warm = time.perf_counter()
    state = writer.last_state()
    if state is not None and isinstance(plan.method, Stateful):
        plan.method.restore(state)
    pending, watch = [item for item in plan.work_items(plan.shard) if item not in writer.done], LoadWatch()
    tracker = Tracker(plan.config["wandb"], plan.run_dir, plan.config)
    neighbours.look()
    with Progress(len(pending)) as progress:
        for index, repeat in pending:
            with stopping.finishing():  # a signal takes effect once the prompt is on disk
                records = _run_prompt(plan, engine, hf_arm, index, repeat, progress)
                neighbours.look()
                state = plan.method.state() if isinstance(plan.method, Stateful) else None
                writer.add(index, repeat, records, state)
                tracker.log(records)
                progress.done(plan.prompts[index].id, records)
    if isinstance(plan.method, Illustrated):
        for name, arrays in plan.method.arrays().items():
            save_arrays(writer.path / f"{name}.npz", arrays)
    cache = engine.cache  # at its final size
    memory = {"weight_bytes": engine.decoder.weights.nbytes, "cache_bytes": cache.nbytes, "cache_rows": cache.rows}
    finish = writer.finish if plan.shard is None else writer.finish_shard
    finish(
        {
            "latency": writer.header["latency"],
            "model": writer.header["model"] | memory,
            "scores": _scores(plan, writer),
            "searches": plan.origin.searches,
            "load_ms": (loaded - begin) * 1e3,
            "profile_ms": (profiled - loaded) * 1e3,
            "prepare_ms": (prepared - profiled) * 1e3,
            "warmup_ms": (warm - prepared) * 1e3,
            "base_bytes": base_bytes,
            "others_share": watch.other_share(),
            "beside": neighbours.seen,
            "wall_s": time.perf_counter() - begin,
            "warnings": _warnings(plan, engine, writer),
        }
        | ({} if hf_arm is None else {"hf": hf_arm.about})
    )
    tracker.finish(dict if plan.shard else lambda: summarise(load_run(plan.run_dir)).row)


def load_engine(plan: Plan, capacity: int | None = None) -> Engine:
    """Load a plan's weights and allocate its cache, for its longest sequence or for `capacity` positions."""
    hardware = plan.hardware
    torch.set_num_threads(hardware.threads)
    with lasting_buffers():
        decoder = plan.backend.load(plan.checkpoint, hardware.dtype, hardware.devices)
        cache = decoder.new_cache((capacity or plan.context) + SCRATCH)
        # Allocate what the prompts need before the first one is timed; answers longer than a bucket make it grow.
        longest = max(len(encoded.ids) for encoded in plan.encoded)
        cache.reserve(cache.capacity if capacity else min(longest + BUCKET, cache.capacity))
    return Engine(decoder, cache, plan.decoding, plan.checkpoint.eos_ids, ModelProbe(decoder, cache))


def _check_logits(plan: Plan, engine: Engine) -> None:
    """Refuse a model whose logits overflow, which finite weights do not rule out.

    Raises:
        ConfigError: the logits after the shortest prompt are not finite.
    """
    encoded = min(plan.encoded, key=lambda prompt: len(prompt.ids))
    if not math.isfinite(engine.probe.top2_gap(encoded.ids)):
        expected = "one in which this model's logits are finite: those of a prompt are not"
        raise ConfigError("hardware.dtype", plan.hardware.dtype_name, expected)


def _scores(plan: Plan, writer: RunWriter) -> dict[str, dict[str, float]]:
    """Return the task's scores per arm, over every answer on disk, including those from before a resume."""
    answers: dict[str, list[tuple[Prompt, str]]] = {}
    for arm, index, turn, text in (answer for answer in writer.answers() if answer[0] != "hf"):
        answers.setdefault(arm, []).append((plan.prompts[index].at(turn), _scored_text(plan, index, turn, text)))
    return {arm: plan.task.scores([p for p, _ in pairs], [t for _, t in pairs]) for arm, pairs in answers.items()}


def _scored_text(plan: Plan, index: int, turn: int, text: str) -> str:
    """Return the part of an answer that the task scores."""
    return scored_text(plan.prompts[index], turn, text, plan.checkpoint.tokenizer, plan.checkpoint.template)


def _run_prompt(
    plan: Plan, engine: Engine, hf_arm: HFProcess | None, index: int, repeat: int, progress: Progress
) -> list[PromptRecord]:
    """Decode one prompt with every arm; of a conversation, every turn that fits into the context.

    Later turns follow AR's answers in every arm, so that all arms read the same text.
    """
    prompt, checkpoint = plan.prompts[index], plan.checkpoint
    records: list[PromptRecord] = []
    answers: list[str] = []
    for turn in range(len(prompt.user_texts)):
        encoded = plan.encoded[index]
        if turn:
            encoded = encode_turn(prompt, answers, checkpoint.tokenizer, checkpoint.template)
            if len(encoded.ids) >= plan.context:
                break
        records += _run_turn(plan, engine, hf_arm, TurnInput(index, repeat, turn, encoded), progress)
        answers.append({record.prompt.arm: record.prompt.text for record in records}[plan.answering_arm])
    return records


@dataclass(frozen=True)
class TurnInput:
    """Input of every arm: a prompt, or one turn of a conversation after the turns and answers before it."""

    index: int
    repeat: int
    turn: int
    encoded: Encoded


def _run_turn(
    plan: Plan, engine: Engine, hf_arm: HFProcess | None, inputs: TurnInput, progress: Progress
) -> list[PromptRecord]:
    """Decode one input with every arm, in random order, so that drift of the machine favours no arm.

    The method's record carries the verdict on losslessness, in greedy runs with AR.
    """
    names, turn_suffix = sorted(plan.arms), f":{inputs.turn}" if inputs.turn else ""
    random.Random(f"{plan.config['seed']}:{inputs.repeat}:{inputs.index}{turn_suffix}").shuffle(names)
    seed = _prompt_seed(plan.config["seed"], plan.prompts[inputs.index].id + turn_suffix, inputs.repeat)
    ids, max_new = inputs.encoded.ids, plan.new_tokens[inputs.index]
    generations = {}
    for name in names:
        if name == "hf":
            assert hf_arm is not None, "a run with this arm has loaded it"
            generations[name] = hf_arm.generate(ids, seed, max_new)
        else:
            method: Method = plan.method if name == "method" else AR()
            generations[name] = engine.generate(method, ids, seed, progress.token, max_new)
    verdict = None
    if "ar" in generations and plan.decoding.greedy:
        reference = generations["ar"].output

        def gap_at(position: int) -> float:
            # top-2 logit gap of the full model at an output position: within the tolerance, a difference is a near-tie
            return engine.probe.top2_gap([*ids, *reference[:position]])

        verdict = lossless.classify(generations["method"].output, reference, gap_at, plan.tie_tolerance)
    records = [
        _record(plan, inputs, name, names.index(name), generations[name], verdict if name == "method" else None)
        for name in names
    ]
    for record in records:
        if hf_arm is not None and record.prompt.arm == "hf":
            record.prompt.peak_bytes = hf_arm.peak_bytes
    return records


def _record(
    plan: Plan, inputs: TurnInput, arm: str, order: int, generation: Generation, verdict: lossless.Verdict | None
) -> PromptRecord:
    """Return one arm's rows of the record: the prompt's, and one per step."""
    prompt, encoded = plan.prompts[inputs.index].at(inputs.turn), inputs.encoded
    keys: dict[str, Any] = {"prompt_index": inputs.index, "repeat": inputs.repeat, "turn": inputs.turn, "arm": arm}
    text = plan.checkpoint.text(generation.output)
    row = PromptRow(
        **keys,
        prompt_id=prompt.id,
        domain=prompt.domain,
        order=order,
        prompt_sha256=encoded.sha256,
        prompt_len=len(encoded.ids),
        clipped_tokens=encoded.clipped,
        new_tokens=len(generation.output),
        prefill_ms=generation.prefill_ms,
        decode_ms=generation.decode_ms,
        draft_ms=sum(s.draft_ms for s in generation.steps),
        verify_ms=sum(s.verify_ms for s in generation.steps),
        policy_ms=sum(s.policy_ms for s in generation.steps),
        peak_bytes=plan.hardware.peak_bytes(),
        finish_reason=generation.finish_reason,
        output_ids=generation.output,
        text=text,
        score=None if arm == "hf" else plan.task.score(prompt, _scored_text(plan, inputs.index, inputs.turn, text)),
        divergence_index=verdict.index if verdict else None,
        divergence_gap=verdict.gap if verdict else None,
        lossless=verdict.verdict if verdict else None,
    )
    steps = [
        StepRow(
            **keys,
            step=s.index,
            context_len=s.context_len,
            layer_set=s.layer_set,
            window=s.window,
            draft_len=s.draft_len,
            tree_nodes=s.tree_nodes,
            accepted_len=s.accepted_len,
            emitted=s.emitted,
            stop_reason=s.stop_reason,
            searched=s.searched,
            draft_ms=s.draft_ms,
            verify_ms=s.verify_ms,
            policy_ms=s.policy_ms,
            est_alpha=s.estimate.alpha if s.estimate else None,
            est_draft_len=s.estimate.draft_len if s.estimate else None,
            est_tokens_per_s=s.estimate.tokens_per_s if s.estimate else None,
        )
        for s in generation.steps
    ]
    return PromptRecord(row, steps)


def _header(plan: Plan) -> dict[str, Any]:
    """Return the header of the record (run.json) as it is before the first prompt."""
    model = {
        "name": plan.dims.name,
        "n_layers": plan.dims.n_layers,
        "n_params": plan.dims.n_params,
        "context": plan.dims.context,
        "dtype": plan.hardware.dtype_name,
        "device": plan.hardware.label,
        "threads": plan.hardware.threads,
        "arithmetic": plan.backend.arithmetic.named(),
        "weights": plan.origin.weights,
        "commit": plan.checkpoint.commit,
        "lm_head": plan.checkpoint.head,
        "rehearsal": plan.rehearsal,
    }
    return {
        "run_id": plan.run_dir.name,
        "content_key": plan.content_key,
        "command": COMMAND + shlex.join(sys.argv[1:]),
        "config": plan.config,
        "model": model,
        "method": plan.method.name,
        "caveat": plan.method.caveat if isinstance(plan.method, Qualified) else None,
        "task": {"name": plan.task.name, "metric": plan.task.metric, "version": plan.task.version},
        "data": plan.fingerprints,
        "domains": [prompt.domain for prompt in plan.prompts],
        "decode": asdict(plan.decoding),
        "tie_tolerance": plan.tie_tolerance,
        "seed": plan.config["seed"],
        "provenance": provenance.collect(COMMAND + shlex.join(sys.argv[1:]), plan.hardware.gpu_names()),
    }


def latency_of(plan: Plan, engine: Engine) -> Latency:
    """Return the profile of `hardware.latency`, or one measured on this machine.

    A profile is measured once per model, hardware and context (rounded up to a power of two) and kept in the cache
    folder.
    """
    if plan.hardware.latency is not None:
        return plan.hardware.latency
    return profiling.load_or_measure(engine.decoder, engine.cache, _profile_path(plan, engine.cache.rows))


def _profile_path(plan: Plan, rows: int) -> Path:
    """Return the file for the profile of a plan's model on this machine, measured up to `rows` of context."""
    context_bits = (rows - 1).bit_length()  # short contexts say little about long ones
    parts = (
        plan.origin.weights,
        plan.hardware.label,
        plan.hardware.dtype_name,
        plan.hardware.threads,
        str(plan.backend.arithmetic),
        plan.hardware.gpu_names(),
        provenance.cpu_model(),
        torch.__version__,
        context_bits,
        profiling.VERSION,
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return cache_dir() / "latency" / f"{plan.dims.name}-{key}.json"


def _warm_up(plan: Plan, engine: Engine, hf_arm: HFProcess | None) -> None:
    """Generate a few tokens per arm, with every shape in use; a copy of the method, so that it learns nothing here."""
    short_decoding = Decoding(**plan.config["decode"] | {"max_new_tokens": min(WARMUP_TOKENS, max(plan.new_tokens))})
    warm_up_engine = Engine(engine.decoder, engine.cache, short_decoding, engine.eos_ids, engine.probe)
    prompt = min((e.ids for e in plan.encoded), key=len)
    method = deepcopy(plan.method, {id(engine.probe): engine.probe})  # not copied: the probe is the model
    for _ in range(plan.hardware.warmup):
        for arm in [method, *([AR()] if "ar" in plan.arms else [])]:
            warm_up_engine.generate(arm, prompt)
        if hf_arm is not None:
            hf_arm.generate(prompt, max_new=short_decoding.max_new_tokens)


def _warnings(plan: Plan, engine: Engine, writer: RunWriter) -> list[str]:
    """Return the warnings of a finished run, as the record keeps them."""
    warnings = list(plan.warnings)
    prompts = [plan.prompts[index] for index, _ in plan.work_items(plan.shard)]
    turns = sum(len(prompt.user_texts) for prompt in prompts)
    if turns > len(prompts) and (skipped := turns - sum(arm == plan.answering_arm for arm, *_ in writer.answers())):
        warnings.append(
            f"{skipped} of {turns} turns were left out: with the turns before them they exceed the context of "
            f"{plan.context} tokens. Use a model with a longer context, or a smaller decode.max_new_tokens."
        )
    if engine.probe.latency.loaded:
        warnings.append(
            f"latency profile unreliable: other processes used more than {100 * QUIET:.0f} % of the machine while it "
            "was measured. Rerun on an idle machine with force=true, which measures it again."
        )
    if plan.checkpoint.head_differs:
        warnings.append(f"the LM head is {plan.checkpoint.head}; transformers uses the same one")
    if plan.backend.warning:
        warnings.append(plan.backend.warning)
    return warnings


def _prompt_seed(seed: int, prompt_id: str, repeat: int) -> int:
    """Return a seed for sampling, the same for every arm, in 63 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{prompt_id}:{repeat}".encode()).digest()[:8], "big") >> 1
