"""The second run of a record: same prompts, same order, and the recorded latency profile."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssd_bench.data.prompting import encode_turn
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.records.fault import Key
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run, load_run
from ssd_bench.records.schema import ANSWER
from ssd_bench.reproduce.check import HEADER, lookup, run_name
from ssd_bench.reproduce.finding import Difference, RecordFinding
from ssd_bench.reproduce.recorded_config import config_again
from ssd_bench.run.loading import load_model
from ssd_bench.run.plan import SEARCHES, Plan, plan
from ssd_bench.run.run import execute, initial_header

COMPARED = (
    *("provenance.code.sha256", "provenance.code.git_sha", "provenance.python", "provenance.platform"),
    *("provenance.device.cpu", "provenance.device.cores", "provenance.device.gpus", "model.device", "model.threads"),
    *(f"model.arithmetic.{name}" for name in ("kernels", "isa", "activations", "inputs")),
    *("model.dtype", "model.weights", "model.commit", "task.version"),
)
"""Keys of run.json that may differ here; packages and data files are also compared by name."""
TABLES = ("provenance.packages", "data")
WEIGHTS = "model.weights"


@dataclass(frozen=True)
class SecondRun:
    """A run planned from a record, without any part of it loaded.

    Attributes:
        plan: of all the record's prompts.
        header: run.json before the first prompt.
        notes: departures from the recorded run.
    """

    plan: Plan
    header: Mapping[str, Any]
    notes: list[str]

    @classmethod
    def of(cls, run: Run, options: Mapping[str, str], runs_dir: Path) -> SecondRun:
        """Plan a record's run again in the folder `runs_dir`, with values for `recorded_config.PLACES`.

        Raises:
            ConfigError: the config cannot be planned here, as `plan`.
        """
        cfg, notes = config_again(run.header, options, str(runs_dir))
        planned = plan(cfg, ["reproduce", f"record={run.path}"])
        if run.header.sample:
            planned = planned.first(run.header.sample)
        if lookup(run.header.config, "method.search.reuse"):  # the name of a stored search, next to the record
            planned = replace(planned, origin=replace(planned.origin, folder=run.path.parent / SEARCHES))
        return cls(planned, initial_header(planned), notes + _history(run.header))

    def differences(self, stored: Mapping[str, Any]) -> list[Difference]:
        """Return the differences between the stored run.json and this run's."""
        contents = (stored, self.header)
        rows = [(name, *(lookup(content, name) for content in contents)) for name in COMPARED]
        for table in TABLES:
            recorded, here = (lookup(content, table) or {} for content in contents)
            names = sorted({*recorded, *here})
            rows += [(f"{table}.{name}", recorded.get(name), here.get(name)) for name in names]
        return [Difference(*row) for row in rows if row[1] != row[2]]

    def obstacle(self, stored: Mapping[str, Any], prompts: list[RecordFinding], count: int) -> str:
        """Return why a second run of `count` prompts could not be compared with the record, or "".

        Args:
            prompts: prompts that differ here.
        """
        recorded, here = lookup(stored, WEIGHTS), self.plan.origin.weights
        if recorded != here:
            return f"the weights are {here} here, and {recorded} in {HEADER}: set model.path to the recorded weights"
        inputs = [finding for finding in prompts if finding.text.startswith(("prompt_sha256", "the task gives"))]
        differing = {finding.key[0] for finding in inputs if finding.key is not None and finding.key[0] < count}
        if differing:
            return f"the tokens of {len(differing)} prompts are different here: set data.root to the recorded data"
        return ""

    def execute(self, header: RunHeader, count: int) -> Run:
        """Decode the first `count` prompts again with the recorded latency profile, and return the record.

        A method may learn from every prompt, so a sample is the beginning of the stream. Calibration prompts and the
        cache's length stay those of the whole run.
        """
        planned, first = self.plan, self.plan.first(count)
        machine = planned.machine
        if header.latency is not None:
            machine = replace(machine, hardware=replace(machine.hardware, latency=header.latency))
        config = planned.config | ({} if first is planned else {"repeats": 1})
        # the profile and the sample are no part of the config, so that the plan's own key would be that of another run
        text = f"{planned.identity.content_key}|{count}|{header.latency}"
        key = hashlib.sha256(text.encode()).hexdigest()
        run_dir = planned.identity.run_dir.with_name(run_name(header, key))
        identity = replace(first.identity, content_key=key, run_dir=run_dir)
        return load_run(execute(replace(first, config=config, machine=machine, identity=identity)))


def _history(header: RunHeader) -> list[str]:
    """Return notes on what no second run can repeat exactly."""
    notes = []
    if header.latency is None:
        notes.append("the record has no latency profile: methods that choose by times may choose other layer sets")
    if len({str(shard.get("latency")) for shard in header.shards}) > 1:
        notes.append("the record has a latency profile per shard: the second run uses that of the first")
    if header.resumed:
        notes.append("the run was continued: prompts before may have had another latency profile")
    if any(search.new < search.evaluations for search in header.searches):
        notes.append(
            "the run reused a search, with the profile of an earlier run: it is repeated with this run's profile"
        )
    if lookup(header.config, "method.search.max_seconds") is not None:
        notes.append("the search ends by its time: the number of its evaluations depends on the machine")
    return notes


class Deviations:
    """The model's logits where two outputs differ; the model is loaded on first use."""

    def __init__(self, planned: Plan, run: Run):
        self._plan, self._run = planned, run
        self._probe: ModelProbe | None = None

    def deficit(self, key: Key, output: list[int], index: int, tokens: tuple[int, int]) -> float:
        """Return by how many logits the less likely of two tokens is below the most likely one.

        The answer's output is equal in both runs before `index`.
        """
        if self._probe is None:
            self._probe = ModelProbe(*load_model(self._plan))
        prompt = [*self._prompt_ids(key), *output[:index]]
        boundary = 2 * self._probe.n_layers
        logits = self._probe.logits(self._probe.prompt_states(prompt, [boundary])[0][-1:])[0].float()
        return float(logits.max() - min(logits[token] for token in tokens))

    def _prompt_ids(self, key: Key) -> tuple[int, ...]:
        """Return the token ids of an answer's prompt, including a conversation's recorded answers before it."""
        index, repeat, turn, _ = key
        encoded = self._plan.prompts.encoded[index]
        if turn:
            rows = self._run.prompts.set_index(list(ANSWER))["text"]
            answers = [str(rows[index, repeat, earlier, self._plan.answering_arm]) for earlier in range(turn)]
            checkpoint = self._plan.model.checkpoint
            encoded = encode_turn(self._plan.prompts.items[index], answers, checkpoint.tokenizer, checkpoint.template)
        return tuple(encoded.ids)
