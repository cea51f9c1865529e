"""One run: from a plan to a measured record."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from ssd_bench.contract.optional import Illustrated, Qualified, Stateful
from ssd_bench.contract.task import Prompt
from ssd_bench.cost.latency import Latency
from ssd_bench.engine.engine import Engine
from ssd_bench.engine.load import QUIET, LoadWatch
from ssd_bench.engine.meter import Meter
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.records import provenance
from ssd_bench.records.files import save_arrays
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.reader import load_run
from ssd_bench.records.writer import RunWriter, clear_leftovers
from ssd_bench.results.digest import summarise
from ssd_bench.results.table_file import complete_results
from ssd_bench.run.arms import Arms, load_hf_arm, task_text
from ssd_bench.run.loading import check_logits, latency_of, load_model
from ssd_bench.run.neighbours import Neighbours
from ssd_bench.run.plan import Plan
from ssd_bench.run.progress import Progress
from ssd_bench.run.tracking import Tracker
from ssd_bench.run_warnings import WarningLog, new_warnings
from ssd_bench.stopping import Stopping


def execute(plan: Plan, wait: bool = True, log: WarningLog | None = None) -> Path:
    """Run a plan, resume it, or find it already recorded, and return the record's folder.

    Args:
        wait: if another process runs the plan, wait until it is done; False: raise `LeaseHeld`.
        log: of a sweep's warnings; None: show all.

    Raises:
        Stopped: the system asked this process to end; the prompt in flight is finished first.
    """
    run_dir = plan.identity.run_dir
    if is_on_record(plan):
        clear_leftovers(run_dir)
    else:
        with open_record(plan, wait, log) as (writer, stopping):
            if not is_on_record(plan):  # another process may have recorded it while this one waited for the lease
                measure(plan, writer, writer.finish, stopping, log)
    complete_results(run_dir)
    return run_dir


def is_on_record(plan: Plan) -> bool:
    """Return whether a run is on record, and say so; runs packed in its folder are unpacked first."""
    unpacked_folder(plan.identity.run_dir)
    if is_recorded := plan.is_recorded():
        print(f"already on record, not repeated (force=true repeats it): {plan.identity.run_dir}")
    return is_recorded


@contextmanager
def open_record(plan: Plan, wait: bool, log: WarningLog | None) -> Iterator[tuple[RunWriter, Stopping]]:
    """Open this job's folder, and turn signals into an orderly end."""
    for warning in new_warnings(plan.warnings, log):
        print(f"warning: {warning}", file=sys.stderr)
    stopping, fresh = Stopping(), plan.config["force"]
    with stopping.listening(), RunWriter(plan.identity.folder, initial_header(plan), fresh=fresh, wait=wait) as writer:
        yield writer, stopping


def measure(
    plan: Plan,
    writer: RunWriter,
    finish: Callable[[Mapping[str, Any]], None],
    stopping: Stopping,
    log: WarningLog | None,
) -> None:
    """Load, profile, prepare and warm up, then decode every pending work item and finish the record.

    `finish` adds the last keys of the header and closes the record.
    """
    with Neighbours(plan.identity.run_dir.name, plan.machine.hardware) as neighbours, load_hf_arm(plan) as hf_arm:
        begin, base_bytes = time.perf_counter(), psutil.Process().memory_info().rss
        decoder, cache = load_model(plan)
        check_logits(plan, ModelProbe(decoder, cache))
        loaded = time.perf_counter()
        latency = latency_of(plan, decoder, cache, log)
        profiled = time.perf_counter()
        probe = ModelProbe(decoder, cache, latency, plan.origin)
        meter = Meter(decoder)
        with meter.counting():
            plan.method.prepare(probe, plan.prompts.samples)
        prepared = time.perf_counter()
        writer.header["latency"] = asdict(latency)
        engine = Engine(decoder, cache, plan.decoding, plan.model.checkpoint.eos_ids, probe)
        arms = Arms(plan, engine, hf_arm)
        arms.warm_up()
        warm, watch = time.perf_counter(), LoadWatch()
        tracker = Tracker(plan.config["wandb"], plan.identity.run_dir, plan.config)
        _decode_pending(arms, writer, stopping, neighbours, tracker)
        # the cache has its final size now
        memory = {"weight_bytes": decoder.weights.nbytes, "cache_bytes": cache.nbytes, "cache_rows": cache.rows}
        memory |= {f"int{bits}_bytes": decoder.in_bits(bits).nbytes for bits in decoder.bits}
        finish(
            {
                "latency": writer.header["latency"],
                "model": writer.header["model"] | memory,
                "scores": task_scores(plan, writer),
                "searches": [asdict(search) for search in probe.searches],
                "load_ms": (loaded - begin) * 1e3,
                "profile_ms": (profiled - loaded) * 1e3,
                "prepare_ms": (prepared - profiled) * 1e3,
                "warmup_ms": (warm - prepared) * 1e3,
                "prepare_work": [asdict(work) for work in meter.total("prepare")],
                "base_bytes": base_bytes,
                "others_share": watch.other_share(),
                "concurrent_runs": neighbours.seen,
                "wall_s": time.perf_counter() - begin,
                "warnings": _warnings(plan, latency, writer),
                **({} if hf_arm is None else {"hf": hf_arm.about}),
            }
        )
        tracker.finish(lambda: summarise(load_run(writer.path)).row if writer.complete else {})


def _decode_pending(
    arms: Arms, writer: RunWriter, stopping: Stopping, neighbours: Neighbours, tracker: Tracker
) -> None:
    plan, state, done = arms.plan, writer.last_state(), writer.done
    if state is not None and isinstance(plan.method, Stateful):
        plan.method.restore(state)
    pending = [item for item in plan.work_items if item not in done]
    neighbours.look()
    with Progress(len(pending)) as progress:
        for index, repeat in pending:
            with stopping.finishing():  # a signal takes effect once the prompt is on disk
                records = arms.decode(index, repeat, progress.token)
                neighbours.look()
                state = plan.method.state() if isinstance(plan.method, Stateful) else None
                writer.add(index, repeat, records, state)
                tracker.log(records)
                progress.done(plan.prompts.items[index].id, records)
    if isinstance(plan.method, Illustrated):
        for name, arrays in plan.method.arrays().items():
            save_arrays(writer.path / f"{name}.npz", arrays)


def initial_header(plan: Plan) -> dict[str, Any]:
    """Return the record's header (run.json) before the first prompt."""
    hardware, dims, checkpoint = plan.machine.hardware, plan.model.dims, plan.model.checkpoint
    model = {
        **{name: getattr(dims, name) for name in ("name", "n_layers", "n_params", "context")},
        "dtype": hardware.dtype_name,
        "device": hardware.label,
        "threads": hardware.threads,
        "arithmetic": plan.machine.backend.arithmetic.named(),
        "weights": plan.origin.weights,
        "commit": checkpoint.commit,
        "lm_head": checkpoint.head,
        "toy": plan.model.toy,
    }
    sample = plan.identity.sample
    return {
        **({} if sample is None else {"sample": sample}),
        "run_id": plan.identity.run_dir.name,
        "content_key": plan.identity.content_key,
        "command": plan.origin.command,
        "config": plan.config,
        "model": model,
        "method": plan.method.name,
        "caveat": plan.method.caveat if isinstance(plan.method, Qualified) else None,
        "task": {"name": plan.task.name, "metric": plan.task.metric, "version": plan.task.version},
        "data": plan.identity.fingerprints,
        "domains": [prompt.domain for prompt in plan.prompts.items],
        "decode": asdict(plan.decoding),
        "tie_tolerance": plan.machine.tie_tolerance,
        "seed": plan.config["seed"],
        "provenance": provenance.collect(plan.origin.command, hardware.gpu_names(), plan.plug_ins),
    }


def task_scores(plan: Plan, writer: RunWriter) -> dict[str, dict[str, float]]:
    """Return the task's scores per arm over every answer on disk, including answers before a resume."""
    answers: dict[str, list[tuple[Prompt, str]]] = {}
    for arm, index, turn, text in (answer for answer in writer.answers() if answer[0] != "hf"):
        answers.setdefault(arm, []).append((plan.prompts.items[index].at(turn), task_text(plan, index, turn, text)))
    return {arm: plan.task.scores([p for p, _ in pairs], [t for _, t in pairs]) for arm, pairs in answers.items()}


def _warnings(plan: Plan, latency: Latency, writer: RunWriter) -> list[str]:
    warnings, checkpoint = list(plan.warnings), plan.model.checkpoint
    prompts = [plan.prompts.items[index] for index, _ in plan.work_items]
    turns = sum(len(prompt.user_texts) for prompt in prompts)
    if turns > len(prompts) and (skipped := turns - sum(arm == plan.answering_arm for arm, *_ in writer.answers())):
        warnings.append(
            f"{skipped} of {turns} turns were left out: with the turns before them they exceed the context of "
            f"{plan.prompts.context} tokens. Use a model with a longer context, or a smaller decode.max_new_tokens."
        )
    if latency.loaded:
        warnings.append(
            f"latency profile unreliable: other processes used more than {100 * QUIET:.0f} % of the machine while it "
            "was measured. Rerun on an idle machine with force=true, which measures it again."
        )
    if checkpoint.head_differs:
        warnings.append(f"the LM head is {checkpoint.head}; transformers uses the same one")
    if plan.machine.backend.warning:
        warnings.append(plan.machine.backend.warning)
    return warnings
