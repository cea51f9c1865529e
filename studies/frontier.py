"""Compare the layer sets of the runs with the best ones.

`python -m studies.frontier model=miniature task=gsm8k [runs_dir=runs] [beam=4] [tries=48] [least=0.1] [limit=10]
[share=0]`

Scores every layer set that drafted in the recorded runs of a model on a task, by draft cost and teacher-forced
acceptance rate (`ssd_bench.papers.ssd_bench.plane`), on the prompts and AR outputs of those runs. Then it searches the
best sets: all sets where feasible, else a beam search that skips one more sublayer at a time, with `tries` candidates
for it, until the best set of a size has an α below `least`. `limit` takes the first prompts only; sets that drafted
less than `share` of the tokens of every run are left out. The best set is chosen on the tokens that its α is measured
on, so its α is too high rather than too low. Sets that drafted with a window of the cache are scored with it; the
search uses no windows. Sets with 8-bit weights are left out. Writes `runs_dir/frontier/MODEL.TASK.json`, which
`notebooks/compare.ipynb` draws.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from methods.oracle import all_layer_sets
from ssd_bench import tables
from ssd_bench.console import count, options, tool
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.window import Window
from ssd_bench.cost.reference import reference_machine
from ssd_bench.cost.work import Machine
from ssd_bench.data.prompting import encode_turn
from ssd_bench.engine.engine import Engine
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.errors import ConfigError
from ssd_bench.papers.ssd_bench.plane import Plane, Point, Use, plane_path
from ssd_bench.paths import reference_hint, write_atomic
from ssd_bench.predict.replay import own_profile
from ssd_bench.records.header import RunHeader
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import Run, find_runs, load_run, read_each
from ssd_bench.results.models import model_title
from ssd_bench.results.rows import arm_rows
from ssd_bench.run.loading import load_model
from ssd_bench.run.plan import Plan, plan
from studies.progress import counted
from studies.set_scores import SetScores

OPTIONS = ("model", "task", "runs_dir", "beam", "tries", "least", "limit", "share")
LONGEST = 32  # draft length among which the best one is sought
EXHAUSTIVE = 4096  # up to this number of sets, all are scored; above it, a beam search
LEAST = 0.1  # default: the search ends when the best α of a size is below


def beam(
    n_layers: int,
    score: Callable[[Iterable[LayerSet]], list[float]],
    width: int,
    least: float = LEAST,
    tries: int | None = None,
) -> None:
    """Score sets that skip 1, 2, ... sublayers: the `width` best of a size, each with one more sublayer skipped.

    Ends at a size whose best α is below `least`.

    Args:
        tries: number of sublayers that are tried for each set: those that cost the least α when they were last tried;
            None: all.
    """
    level, last = [LayerSet.full(n_layers)], dict.fromkeys(range(2 * n_layers), 1.0)
    for _ in counted(range(2 * n_layers), "beam search, by skipped sublayers"):
        added: dict[frozenset[int], int] = {}
        for level_set in level:
            for i in sorted(level_set.kept, key=lambda i: -last[i])[: tries if len(level_set.skipped) else None]:
                added.setdefault(level_set.skipped | {i}, i)
        if not added:
            break
        sets = [LayerSet(n_layers, skipped) for skipped in sorted(added, key=sorted)]
        ranked = sorted(zip(score(sets), sets), key=lambda pair: -pair[0])
        last |= {added[layer_set.skipped]: alpha for alpha, layer_set in reversed(ranked)}
        level = [layer_set for _, layer_set in ranked[:width]]
        if ranked[0][0] < least:
            break


def frontier(
    runs: Sequence[Run],
    width: int,
    least: float = LEAST,
    tries: int | None = None,
    limit: int | None = None,
    share: float = 0.0,
) -> Plane:
    """Score the sets of runs with the same model, prompts and outputs, and search the best sets.

    Args:
        width, least, tries: as in `beam`.
        limit: number of prompts, from the first; None: all.
        share: least share of the drafted tokens of one run, of the drafted sets.

    Raises:
        ConfigError: the model, data or prompts of the runs are not available any more, or have changed.
    """
    header = runs[0].header
    named = header.options("hardware").get("costs")
    machine = reference_machine(str(named)).of_blocks(header.model.n_layers) if named else own_profile(runs[0])
    planned = _plan(header.config)
    ar_rows = _ar_rows(runs[0])
    prompts = _read_prompts(planned, ar_rows)
    if prompts is None:
        raise ConfigError("task", header.task.name, f"the prompts of {header.run_id}; they have changed since")
    outputs = [[int(token) for token in ids] for ids in ar_rows["output_ids"]][:limit]
    prompts = prompts[:limit]
    longest = max(len(prompt) + len(output) for prompt, output in zip(prompts, outputs))
    decoder, cache = load_model(planned, longest)
    eos_ids, probe = planned.model.checkpoint.eos_ids, ModelProbe(decoder, cache)
    engine = Engine(decoder, cache, planned.decoding, eos_ids, probe)
    n_layers = planned.model.dims.n_layers
    score = SetScores(engine, prompts, outputs)
    score([LayerSet.full(n_layers)])
    if exhaustive := 2 ** (2 * n_layers) <= EXHAUSTIVE:
        score(all_layer_sets(n_layers), "layer sets")
    else:
        beam(n_layers, score, width, least, tries)
    uses = {drafted: used for drafted, used in _uses(runs).items() if max(use.share for use in used) >= share}
    score((layer_set for layer_set in uses if layer_set.window is None), "drafted layer sets")
    windowed = [layer_set for layer_set in uses if layer_set.window is not None]
    windowed_alphas = {one: score.token_by_token(one) for one in counted(windowed, "layer sets with a window")}
    context = mean(len(prompt) + len(output) / 2 for prompt, output in zip(prompts, outputs))
    *_, verify = costs(machine, n_layers, context)
    points = [
        _point(machine, layer_set, context, alpha, uses.get(layer_set, ()))
        for layer_set, alpha in (score.alphas | windowed_alphas).items()
    ]
    return Plane(
        header.model.name,
        header.task.name,
        n_layers,
        "exhaustive" if exhaustive else f"beam of {width}" + (f", {tries} tries" if tries else ""),
        len(points),
        score.tokens,
        context,
        verify,
        tuple(pareto_front(points)),
        tuple(point for point in points if point.uses),
    )


def _point(machine: Machine, layer_set: LayerSet, context: float, alpha: float, uses: Sequence[Use]) -> Point:
    window = None if layer_set.window is None else (layer_set.window.sinks, layer_set.window.recent)
    return Point(tuple(sorted(layer_set.skipped)), draft_cost(machine, layer_set, context), alpha, tuple(uses), window)


def pareto_front(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other point beats in cost or α without being worse in the other, by cost.

    Of points with equal cost and α the first is kept.
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.alpha)):
        if not best or point.alpha > best[-1].alpha:
            best.append(point)
    return best


def write(runs_dir: Path, plane: Plane) -> Path:
    """Write a plane, replacing an older one."""
    path = plane_path(runs_dir, plane.model, plane.task)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(asdict(plane), ensure_ascii=False).encode() + b"\n")
    return path


def _ar_rows(run: Run) -> pd.DataFrame:
    """Return the rows of AR's answers in the first repeat, ordered by prompt and turn."""
    return run.prompts.query("arm == 'ar' and repeat == 0").sort_values(["prompt_index", "turn"])


def _read_prompts(planned: Plan, ar_rows: pd.DataFrame) -> list[tuple[int, ...]] | None:
    """Return the token ids that AR read for each answer, earlier turns included; None if they have changed."""
    firsts, read_prompts, answers = ar_rows.loc[ar_rows["turn"] == 0, "prompt_sha256"], [], list[str]()
    if firsts.tolist() != [encoded.sha256 for encoded in planned.prompts.encoded]:
        return None
    checkpoint = planned.model.checkpoint
    for row in ar_rows.to_dict("records"):
        encoded = planned.prompts.encoded[row["prompt_index"]]
        if row["turn"]:
            encoded = encode_turn(
                planned.prompts.items[row["prompt_index"]], answers, checkpoint.tokenizer, checkpoint.template
            )
        if encoded.sha256 != row["prompt_sha256"]:
            return None
        read_prompts.append(encoded.ids)
        answers = [*(answers if row["turn"] else ()), row["text"]]
    return read_prompts


def _plan(config: Mapping[str, Any]) -> Plan:
    """Plan a run with the same prompts and model, and AR as its method."""
    run_options = {key: value for key, value in config.items() if key != "calibrate"}
    return plan(OmegaConf.create(run_options | {"method": {"_target_": "methods.ar.AR"}}))


def draft_cost(machine: Machine, layer_set: LayerSet, context: float) -> float:
    """Return the cost of a drafted token in plain steps, at a context length; all weights in the same bits."""
    attn, mlp, rest_cost, _ = costs(machine, layer_set.n_layers, context, layer_set.window, layer_set.head_bits)
    return layer_set.n_attn * attn + layer_set.n_mlp * mlp + rest_cost


def costs(
    machine: Machine, n_layers: int, context: float, window: Window | None = None, bits: int = 0
) -> tuple[float, float, float, tuple[float, ...]]:
    """Return the costs of the parts of a cycle in plain steps, at a context length.

    Args:
        window: the positions that a drafted token reads; None for all.
        bits: bits of the weights that a drafted token reads; 0: as loaded.

    Returns:
        Costs of one attention, of one MLP and of the remainder for a drafted token; and of verifications of 0, 1, ...
        `LONGEST` drafted tokens, each with the fixed cost of a draft.
    """
    nodes = np.arange(1.0, LONGEST + 2)
    attn, mlp, rest_ms = machine.pass_ms(nodes, np.full_like(nodes, context))
    passes = n_layers * (attn + mlp) + rest_ms
    verify = passes + np.where(nodes > 1, machine.draft_start_ms, 0.0)
    read = context if window is None else window.count_read(context)
    attn, mlp, _ = machine.pass_ms(np.ones(1), np.full(1, read), bits)
    parts = (float(ms / passes[0]) for ms in (attn[0], mlp[0], machine.rest_ms(bits)))
    return (*parts, tuple((verify / passes[0]).tolist()))  # type: ignore[return-value]


def _uses(runs: Iterable[Run]) -> dict[LayerSet, list[Use]]:
    """Return every set that drafted with full weights, its runs, and its share of the drafted tokens of each."""
    uses: dict[LayerSet, list[Use]] = {}
    for run in runs:
        steps = arm_rows(run.steps, "method").dropna(subset=["layer_set_id"])
        drafted = steps.groupby("layer_set_id")["draft_len"].sum()
        for set_id, tokens in drafted[drafted > 0].items():
            use = Use(run.path.name, run.header.method, float(tokens / drafted.sum()))
            layer_set = run.layer_set(int(str(set_id)))
            if not layer_set.rounded:
                uses.setdefault(layer_set, []).append(use)
    return uses


def find_comparable_runs(runs_dir: Path, model: str, task: str) -> list[Run]:
    """Return the complete greedy runs of a model on a task with the same prompts, AR outputs and machine.

    If there are several such groups, the one with the most methods; of these, one with costs of a reference machine.

    Raises:
        ConfigError: no such run.
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}

    def fits(header: RunHeader) -> bool:
        of_question = header.model.name == model and header.task.name == task and header.decode.greedy
        return of_question and header.status == "complete" and header.latency is not None

    headers = read_each(find_runs(runs_dir), lambda path: (path, RunHeader.read(path)))
    for run in read_each([path for path, header in headers if fits(header)], load_run):
        header, ar_rows = run.header, _ar_rows(run)
        outputs = tuple(tuple(map(int, ids)) for ids in ar_rows["output_ids"])
        key = (
            header.model.weights,
            header.model.dtype,
            header.model.device,
            header.model.threads,
            header.options("hardware").get("costs"),
            tuple(ar_rows["prompt_sha256"]),
            outputs,
        )
        if outputs:
            groups.setdefault(key, []).append(run)
    if not groups:
        expected = f"a folder with finished greedy runs of model={model} task={task} that have a latency profile"
        raise ConfigError("runs_dir", str(runs_dir), expected + reference_hint(runs_dir))

    def rank(runs: list[Run]) -> tuple[int, bool, int]:
        has_costs = runs[0].header.options("hardware").get("costs") is not None
        return len({run.header.method for run in runs}), has_costs, len(runs)

    return max(groups.values(), key=rank)


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Print and write the frontier."""
    expected = {name: f"{name}=NAME, as in the records" for name in ("model", "task")}
    values = options(arguments, OPTIONS, **expected)
    width = count("beam", values.get("beam", "4"))
    tries, limit = (count(name, values[name]) if name in values else None for name in ("tries", "limit"))
    least, share = (
        _share(name, values.get(name, default)) for name, default in (("least", str(LEAST)), ("share", "0"))
    )
    runs_dir = records_folder("runs_dir", values.get("runs_dir", "runs"))
    runs = find_comparable_runs(runs_dir, values["model"], values["task"])
    plane = frontier(runs, width, least, tries, limit, share)
    print(render(plane))
    print(write(runs_dir, plane))


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(name, text, "a number from 0 to 1")
    return share


def render(plane: Plane) -> str:
    """Return a table of the best set and of the best set of each method, for a terminal."""
    best = max(plane.frontier, key=lambda point: plane.speedup(point.cost, point.alpha))
    best_points = {"best": best}
    for method in dict.fromkeys(use.method for point in plane.chosen for use in point.uses):
        method_points = [point for point in plane.chosen if any(use.method == method for use in point.uses)]
        best_points[method] = max(method_points, key=lambda point: plane.speedup(point.cost, point.alpha))
    rows = [
        (
            name,
            f"{point.cost:.3f}",
            f"{point.alpha:.3f}",
            str(len(point.skipped)),
            f"{plane.speedup(point.cost, point.alpha):.2f}x",
        )
        for name, point in best_points.items()
    ]
    heads = ["layer set", "c", "α", "skipped sublayers", "predicted speedup"]
    caption = f"{model_title(plane.model)} on {plane.task}: {plane.tried} sets tried ({plane.search}), "
    caption += f"α over {plane.tokens} tokens"
    return f"{caption}\n{tables.terminal(pd.DataFrame(rows, columns=heads), heads[1:])}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
