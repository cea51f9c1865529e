"""`python -m ssd_bench frontier model=miniature task=gsm8k [runs_dir=runs] [beam=4]`: chosen sets, and the best.

Takes the runs of a model on a task that are on record, and scores every layer set that drafted in them by draft cost
and teacher-forced acceptance rate (`replicate.plane`), on the prompts and AR outputs of those runs. Beside them it
seeks the best sets there are: all of them where that is possible, else by a beam search that skips one sublayer more
at a time. Sets that drafted with a window of the cache are scored with it; the search has none. Writes
`runs_dir/frontier/MODEL.TASK.json`, which `notebooks/compare.ipynb` draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
import torch
from omegaconf import OmegaConf
from tqdm import tqdm

from methods.oracle import every_set
from ssd_bench import metrics, tables
from ssd_bench.command import count, options, tool
from ssd_bench.core.engine import Engine
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.window import Window
from ssd_bench.cost.machine import Machine, own_profile
from ssd_bench.cost.matchness import matchness
from ssd_bench.cost.plane import DRAFT_LEN, LONGEST, Plane, Point, Use, pareto, write
from ssd_bench.data.prompting import encode_turn
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Pass
from ssd_bench.paths import local_path
from ssd_bench.plan import Plan, plan
from ssd_bench.records.files import read_header
from ssd_bench.records.reader import Run, find_runs, load_run
from ssd_bench.run import load_engine

OPTIONS = ("model", "task", "runs_dir", "beam")
EXHAUSTIVE = 4096  # sets; of more, a beam search
LEAST = 0.1  # α below which skipping more is not tried

Draft = tuple[LayerSet, Window | None]
"""A layer set that drafted, and the window that it read; None: all positions."""


class Scores:
    """Teacher-forced α of layer sets, each scored once.

    Args:
        engine: with the model; its cache is used and left empty.
        prompts, outputs: token ids of each prompt, and of AR's output to it.
    """

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]):
        self._engine = engine
        self._texts = [(p, o) for p, o in zip(prompts, outputs, strict=True) if len(o) > 1]
        self.tokens = sum(len(output) - 1 for _, output in self._texts)
        self.known: dict[LayerSet, float] = {}

    def __call__(self, sets: Iterable[LayerSet]) -> list[float]:
        """α of each set."""
        asked = list(sets)
        new = [one for one in dict.fromkeys(asked) if one not in self.known]
        right = dict.fromkeys(new, 0.0)
        with torch.inference_mode():
            for prompt, output in self._texts if new else ():
                self._prefill([*prompt, *output[:-1]])
                for layer_set in new:
                    right[layer_set] += self._right(layer_set, len(prompt), output)
        self._engine.cache.reset()
        self.known |= {layer_set: count / self.tokens for layer_set, count in right.items()}
        return [self.known[layer_set] for layer_set in asked]

    def with_window(self, layer_set: LayerSet, window: Window) -> float:
        """Return α of a set whose attentions read a window of the cache, token by token as it drafts."""
        decoder, cache, right = self._engine.decoder, self._engine.cache, 0
        with torch.inference_mode():
            for prompt, output in self._texts:
                self._prefill([*prompt, *output[:-1]])
                last = len(output) - 1
                # a draft overwrites the rows that follow its prefix, so the last draft of the text goes first
                for begin in reversed(range(0, last, DRAFT_LEN)):
                    for at in range(begin, min(begin + DRAFT_LEN, last)):
                        token, prefix = decoder.ids(output[at : at + 1]), len(prompt) + at
                        step = Pass(layer_set.kept, token, prefix, unread=window.unread(prefix))
                        predicted = decoder.logits(decoder.run(step, cache)[0]).argmax(-1)
                        right += int(predicted) == output[at + 1]
        cache.reset()
        return right / self.tokens

    def _prefill(self, tokens: Sequence[int]) -> None:
        decoder, cache = self._engine.decoder, self._engine.cache
        cache.reset()
        decoder.prefill(torch.tensor(tokens, device=decoder.device), cache)

    def _right(self, layer_set: LayerSet, prompt_len: int, output: Sequence[int]) -> float:
        """Output tokens that the set predicts, drafting `DRAFT_LEN` of them after every `DRAFT_LEN`."""
        found = 0.0
        for at in range(0, len(output) - 1, DRAFT_LEN):
            window = output[at : at + DRAFT_LEN + 1]
            found += (len(window) - 1) * matchness(layer_set, window, prompt_len + at, self._engine.probe)
        return found


def beam(n_layers: int, score: Callable[[Iterable[LayerSet]], list[float]], width: int) -> None:
    """Score sets that skip 1, 2, ... sublayers: each of the `width` best so far with one more sublayer skipped.

    Ends where no set of a size has an α of `LEAST`.
    """
    level = [LayerSet.full(n_layers)]
    with tqdm(total=2 * n_layers, desc="frontier", unit="sublayer", disable=not sys.stderr.isatty()) as bar:
        for _ in range(2 * n_layers):
            wider = {one.skipped | {i} for one in level for i in one.kept}
            sets = [LayerSet(n_layers, skipped) for skipped in sorted(wider, key=sorted)]
            ranked = sorted(zip(score(sets), sets), key=lambda pair: -pair[0])[:width]
            level = [layer_set for _, layer_set in ranked]
            bar.update()
            if ranked[0][0] < LEAST:
                break


def frontier(runs: Sequence[Run], width: int) -> Plane:
    """Score the sets of runs with the same model, prompts and outputs, and find the best there are.

    Raises:
        ConfigError: what the runs were made of is not there any more, or was not the same.
    """
    header = runs[0].header
    planned = _plan(header["config"])
    plain = _plain(runs[0])
    prompts = _read(planned, plain)
    if prompts is None:
        raise ConfigError("task", header["task"]["name"], f"the prompts of {header['run_id']}; they have changed since")
    outputs = [[int(token) for token in ids] for ids in plain["output_ids"]]
    longest = max(len(prompt) + len(output) for prompt, output in zip(prompts, outputs))
    engine = load_engine(planned, longest)
    n_layers = planned.dims.n_layers
    score = Scores(engine, prompts, outputs)
    score([LayerSet.full(n_layers)])
    if exhaustive := 2 ** (2 * n_layers) <= EXHAUSTIVE:
        score(every_set(n_layers))
    else:
        beam(n_layers, score, width)
    uses = _uses(runs)
    score(layer_set for layer_set, window in uses if window is None)
    alphas: dict[Draft, float] = {(layer_set, None): alpha for layer_set, alpha in score.known.items()}
    alphas |= {(layer_set, window): score.with_window(layer_set, window) for layer_set, window in uses if window}
    context = mean(len(prompt) + len(output) / 2 for prompt, output in zip(prompts, outputs))
    machine = own_profile(runs[0])
    *_, verify = costs(machine, n_layers, context)
    points = [
        Point(
            tuple(sorted(draft[0].skipped)), draft_cost(machine, draft, context), alpha, tuple(uses.get(draft, ())),
            None if draft[1] is None else (draft[1].sinks, draft[1].recent),
        )
        for draft, alpha in alphas.items()
    ]  # fmt: skip
    return Plane(
        header["model"]["name"], header["task"]["name"], n_layers,
        "exhaustive" if exhaustive else f"beam of {width}", len(points), score.tokens, context,
        verify, tuple(pareto(points)), tuple(point for point in points if point.uses),
    )  # fmt: skip


def _plain(run: Run) -> pd.DataFrame:
    """AR's answers in the first repeat, of a conversation turn by turn."""
    return run.prompts.query("arm == 'ar' and repeat == 0").sort_values(["prompt_index", "turn"])


def _read(planned: Plan, plain: pd.DataFrame) -> list[tuple[int, ...]] | None:
    """What AR read for each answer: the prompt, of a later turn with its answers before; None if it is other now."""
    firsts, found, answers = plain.loc[plain["turn"] == 0, "prompt_sha256"], [], list[str]()
    if firsts.tolist() != [encoded.sha256 for encoded in planned.encoded]:
        return None
    tokenizer, template = planned.checkpoint.tokenizer, planned.checkpoint.template
    for row in plain.to_dict("records"):
        encoded = planned.encoded[row["prompt_index"]]
        if row["turn"]:
            encoded = encode_turn(planned.prompts[row["prompt_index"]], answers, tokenizer, template)
        if encoded.sha256 != row["prompt_sha256"]:
            return None
        found.append(encoded.ids)
        answers = [*(answers if row["turn"] else ()), row["text"]]
    return found


def _plan(config: Mapping[str, Any]) -> Plan:
    """Of the same prompts on the same model, without the run's method."""
    kept = {key: value for key, value in config.items() if key != "calibrate"}
    return plan(OmegaConf.create(kept | {"method": {"_target_": "methods.ar.AR"}}))


def draft_cost(machine: Machine, draft: Draft, context: float) -> float:
    """Return what a drafted token costs in plain steps, at a context length."""
    layer_set, window = draft
    attn, mlp, rest, _ = costs(machine, layer_set.n_layers, context, window)
    return layer_set.n_attn * attn + layer_set.n_mlp * mlp + rest


def costs(
    machine: Machine, n_layers: int, context: float, window: Window | None = None
) -> tuple[float, float, float, tuple[float, ...]]:
    """Return what parts of a cycle cost in plain steps, at a context length.

    Args:
        window: the positions that a drafted token reads; None: all.

    Returns:
        One attention and one MLP over a drafted token, the rest of that token, and the verification of 0, 1, ...
        `LONGEST` drafted tokens, with what a draft takes beside its tokens.
    """
    nodes = np.arange(1.0, LONGEST + 2)
    attn, mlp, rest = machine.pass_ms(nodes, np.full_like(nodes, context))
    passes = n_layers * (attn + mlp) + rest
    verify = passes + np.where(nodes > 1, machine.draft_start_ms, 0.0)
    read = context if window is None else window.positions(context)
    read_ms = machine.pass_ms(np.ones(1), np.full(1, read))[0][0]
    parts = (float(ms / passes[0]) for ms in (read_ms, mlp[0], machine.draft_rest_ms))
    return (*parts, tuple((verify / passes[0]).tolist()))  # type: ignore[return-value]


def _uses(runs: Iterable[Run]) -> dict[Draft, list[Use]]:
    """Return every set that drafted, with its window, the runs and its share of their drafted tokens."""
    found: dict[Draft, list[Use]] = {}
    for run in runs:
        steps = metrics.arm_rows(run.steps, "method").dropna(subset=["layer_set_id"])
        drafted = steps.groupby("layer_set_id")["draft_len"].sum()
        for set_id, tokens in drafted[drafted > 0].items():
            use = Use(run.path.name, str(run.header["method"]), float(tokens / drafted.sum()))
            key = int(str(set_id))
            found.setdefault((run.layer_set(key), run.window(key)), []).append(use)
    return found


def matching(runs_dir: Path, model: str, task: str) -> list[Run]:
    """The complete paired runs of a model on a task; of several prompt lists or machines that of most methods.

    Raises:
        ConfigError: there is none.
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for path in find_runs(runs_dir):
        header = read_header(path)
        own, sampled = header["model"], header["config"]["decode"]["mode"] != "greedy"
        named = own["name"] == model and header["task"]["name"] == task
        if not named or sampled or header.get("status") != "complete" or not header.get("latency"):
            continue
        run = load_run(path)
        plain = _plain(run)
        outputs = tuple(tuple(map(int, ids)) for ids in plain["output_ids"])
        key = (own["weights"], own["dtype"], own["device"], own["threads"], tuple(plain["prompt_sha256"]), outputs)
        if outputs:
            groups.setdefault(key, []).append(run)
    if not groups:
        allowed = f"a folder with finished greedy runs of model={model} task={task} that have a latency profile"
        raise ConfigError("runs_dir", str(runs_dir), allowed)
    return max(groups.values(), key=lambda runs: (len({run.header["method"] for run in runs}), len(runs)))


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if an option or the runs cannot be used."""
    return tool(_main, __doc__, arguments)


def _main(arguments: Sequence[str]) -> None:
    given = options(arguments, OPTIONS)
    for name in ("model", "task"):
        if name not in given:
            raise ConfigError(name, None, f"{name}=NAME, as in the records")
    width = count("beam", given.get("beam", "4"))
    runs_dir = local_path("runs_dir", given.get("runs_dir", "runs"))
    found = frontier(matching(runs_dir, given["model"], given["task"]), width)
    print(screen(found))
    print(write(runs_dir, found))


def screen(plane: Plane) -> str:
    """The best sets and the best of each method, for a terminal."""
    best = max(plane.frontier, key=lambda point: plane.speedup(point.cost, point.alpha))
    shown = {"best": best}
    for method in dict.fromkeys(use.method for point in plane.chosen for use in point.uses):
        own = [point for point in plane.chosen if any(use.method == method for use in point.uses)]
        shown[method] = max(own, key=lambda point: plane.speedup(point.cost, point.alpha))
    rows = [
        (name, f"{point.cost:.3f}", f"{point.alpha:.3f}", str(len(point.skipped)),
         f"{plane.speedup(point.cost, point.alpha):.2f}x")
        for name, point in shown.items()
    ]  # fmt: skip
    heads = ["", "c", "α", "skips", "predicted"]
    head = f"{plane.model} on {plane.task}: {plane.tried} sets tried ({plane.search}), α over {plane.tokens} tokens"
    return f"{head}\n{tables.terminal(pd.DataFrame(rows, columns=heads), heads[1:])}"
