"""A run in the schema of Every Eval Ever, a shared store of evaluation results: files of results and samples.

The files follow the JSON schemas of `every-eval-ever` 0.3.0 (MIT licence; none of its text is here). Records have no
prompts as text, so the SHA-256 of its token ids names a sample's input.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from ssd_bench.errors import NOT_GIVEN, ConfigError
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import PAIR
from ssd_bench.results.digest import summarise
from ssd_bench.results.models import file_bits
from ssd_bench.results.quantity import LEVEL, MODELLED, QUANTITIES, Measured, ratio
from ssd_bench.results.rows import arm_rows

VERSION = "0.3.0"
RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")
"""Their schema's relationships between evaluator and model."""
INTERVAL = "jackknife t-interval on the logarithm, over prompts"
UNBOUNDED = "Infinity"
SCORE = "score"
MODEL_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)+")


@dataclass(frozen=True)
class Publisher:
    """Facts about a result that no record has.

    Attributes:
        model: the model's hub id, ORGANISATION/NAME; empty: from the record.
        organization: the publisher.
        relationship: between evaluator and model; empty: first_party for this project's models, else third_party.
    """

    model: str = ""
    organization: str = "unknown"
    relationship: str = ""

    def __post_init__(self) -> None:
        if self.model and not MODEL_ID.fullmatch(self.model):
            raise ConfigError("model", self.model, "the id of a model, ORGANISATION/NAME, as on the hub")
        if self.relationship and self.relationship not in RELATIONSHIPS:
            raise ConfigError("relationship", self.relationship, f"one of {', '.join(RELATIONSHIPS)}")


@dataclass(frozen=True)
class EvalLog:
    """A run in their schema.

    Attributes:
        samples: empty for a task without a score.
        place: the results' file in their data store, `data/TASK/ORGANISATION/MODEL/UUID.json`.
    """

    results: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]
    place: str

    @property
    def results_text(self) -> str:
        """Text of the file of results."""
        return f"{json.dumps(self.results, indent=1, ensure_ascii=False, allow_nan=False)}\n"

    @property
    def samples_text(self) -> str:
        """Text of the file of samples, a JSON object a line."""
        return _lines(self.samples)


def eval_log(run: Run, publisher: Publisher) -> EvalLog:
    """Return a run in the schema of Every Eval Ever; the same record gives the same files.

    Raises:
        ConfigError: neither the record nor `publisher` names a model of the hub, or the record has no end time.
    """
    header, model = run.header, publisher.model or _model_id(run.header)
    ended = _timestamp(header)
    evaluation_id = f"{header.task.name}/{model.replace('/', '_')}/{ended}"
    identity = hashlib.sha256(f"{header.run_id}|{header.content_key}|{ended}".encode()).digest()
    organisation, *parts = model.split("/")
    place = f"data/{header.task.name}/{organisation}/{'_'.join(parts)}/{uuid.UUID(bytes=identity[:16], version=4)}"
    samples = [{"evaluation_id": evaluation_id, "model_id": model} | sample for sample in _samples(run, evaluation_id)]
    results = {
        "schema_version": VERSION,
        "evaluation_id": evaluation_id,
        "evaluation_timestamp": header.provenance.started_at or header.finished_at,
        "retrieved_timestamp": ended,
        "source_metadata": {
            "source_name": "ssd-bench",
            "source_type": "evaluation_run",
            "source_organization_name": publisher.organization,
            "evaluator_relationship": publisher.relationship or ("first_party" if header.model.toy else "third_party"),
            "additional_details": {"run_id": header.run_id, "content_key": header.content_key},
        },
        "eval_library": {"name": "ssd-bench", "version": _version(header)},
        "model_info": _model_info(header, model),
        "evaluation_results": _results(run, evaluation_id),
    }
    if samples:
        results["detailed_evaluation_results"] = {
            "format": "jsonl",
            "file_path": f"{place}_samples.jsonl",
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(_lines(samples).encode()).hexdigest(),
            "total_rows": len(samples),
        }
    return EvalLog(results, samples, f"{place}.json")


def _lines(samples: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(sample, ensure_ascii=False, allow_nan=False)}\n" for sample in samples)


def _model_id(header: RunHeader) -> str:
    options = header.options("model")
    if options.get("hub"):
        return str(options["hub"])
    if header.model.toy:
        return f"ssd-bench/{header.model.name}"
    raise ConfigError("model", NOT_GIVEN, "model=ORGANISATION/NAME, because the record names no model of the hub")


def _timestamp(header: RunHeader) -> str:
    try:
        return str(int(datetime.fromisoformat(header.finished_at).timestamp()))
    except ValueError:
        raise ConfigError("finished_at", header.finished_at, "the time of the run's end, ISO 8601") from None


def _version(header: RunHeader) -> str:
    return header.provenance.packages.get("ssd-bench", "unknown")


def _model_info(header: RunHeader, model: str) -> dict[str, Any]:
    facts = {
        "dtype": header.model.dtype,
        "parameters": header.model.n_params,
        "weights": header.model.weights,
        "bits_of_file": file_bits(header.model.name),
        "commit": header.model.commit,
        "device": header.device_name,
        "toy_model": "true" if header.model.toy else None,
        "decoding_method": header.method,
        "method_settings": json.dumps(header.settings, sort_keys=True),
    }
    is_open = header.model.toy or header.options("model").get("hub")
    return {
        "name": header.model.name,
        "id": model,
        "developer": model.partition("/")[0],
        "inference_engine": {"name": "ssd-bench", "version": _version(header)},
        "additional_details": {
            "deployment_type": "self_deployed",
            "model_availability": "open_weights" if is_open else "unknown",
            **{name: str(fact) for name, fact in facts.items() if fact not in (None, "")},
        },
    }


def _results(run: Run, evaluation_id: str) -> list[dict[str, Any]]:
    """Return the results: both arms' scores, then the run's quantities of the catalogue."""
    header, summary = run.header, summarise(run)
    common = {"source_data": _source_data(header), "generation_config": _generation(header)}
    results = []
    for domain, score_name in _score_names(header).items():
        for arm in PAIR:
            number, deviation = _score(run, arm, domain)
            if number.value is not None:
                config: dict[str, Any] = {
                    "metric_name": score_name,
                    "metric_unit": "proportion",
                    "metric_parameters": {"arm": arm},
                    "evaluation_description": f"mean over prompts, of the answers of {arm}",
                    **_bounds(1.0),
                }
                details = _score_details(number, deviation)
                results.append(_result(header, _score_id(evaluation_id, arm, domain), domain, config, details) | common)
    for key, number in summary.numbers.items():
        quantity = QUANTITIES[key]
        if number.value is not None and quantity.unit != SCORE:  # scores stand above, by domain
            config = {
                "metric_name": quantity.label,
                "metric_id": f"ssd_bench.{key}",
                "metric_unit": quantity.unit,
                "metric_parameters": {"arm": quantity.arms[0]},
                "evaluation_description": quantity.note,
                "lower_is_better": quantity.better == "lower",
                **_bounds(None if math.isinf(quantity.at_most) else quantity.at_most),
            }
            if quantity.times == MODELLED:
                config["additional_details"] = {"reference_machine": str(summary.modelled_on)}
            counted = Measured(number.value, number.low, number.high, summary.n_prompts)
            results.append(_result(header, f"{evaluation_id}#{key}", "", config, _score_details(counted)) | common)
    return results


def _result(
    header: RunHeader, result_id: str, domain: str, config: Mapping[str, Any], details: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "evaluation_result_id": result_id,
        "evaluation_name": _evaluation_name(header, domain),
        "metric_config": {"lower_is_better": False, "score_type": "continuous", **config},
        "score_details": details,
    }


def _bounds(most: float | None) -> dict[str, Any]:
    return {"min_score": 0.0, "max_score": UNBOUNDED if most is None else most}


def _evaluation_name(header: RunHeader, domain: str) -> str:
    return f"{header.task.name}/{domain}" if domain else header.task.name


def _score_id(evaluation_id: str, arm: str, domain: str) -> str:
    return f"{evaluation_id}#score.{arm}{f'.{domain}' if domain else ''}"


def _score_names(header: RunHeader) -> dict[str, str]:
    """Return a task's headline metric under ""; for a stream every task's by domain.

    A stream's metric is a text such as "rougeL of cnn_dm, xsum; exact_match of gsm8k".
    """
    metric = header.task.metric or ""
    if " of " not in metric:
        return {"": metric} if metric else {}
    parts = (part.partition(" of ") for part in metric.split("; "))
    return {domain: name for name, _, domains in parts for domain in domains.split(", ")}


def _scored(run: Run, arm: str, domain: str) -> pd.DataFrame:
    rows = arm_rows(run.prompts, arm).dropna(subset=["score"])
    return rows[rows["domain"] == domain] if domain else rows


def _score(run: Run, arm: str, domain: str) -> tuple[Measured, float | None]:
    """Return the mean score with its interval, and the standard deviation over prompts."""
    scores = _scored(run, arm, domain).groupby("prompt_index")["score"].mean().to_numpy(float)
    return ratio(scores, np.ones_like(scores), at_most=1.0), float(scores.std(ddof=1)) if len(scores) > 1 else None


def _score_details(number: Measured, deviation: float | None = None) -> dict[str, Any]:
    uncertainty: dict[str, Any] = {"num_samples": number.n}
    if deviation is not None:
        uncertainty["standard_deviation"] = deviation
        uncertainty["standard_error"] = {"value": deviation / number.n**0.5, "method": "analytic"}
    if number.low is not None and number.high is not None:
        ends = {"lower": number.low, "upper": number.high}
        uncertainty["confidence_interval"] = {**ends, "confidence_level": LEVEL, "method": INTERVAL}
    return {"score": number.value, "uncertainty": uncertainty}


def _source_data(header: RunHeader) -> dict[str, Any]:
    """Return the source of the prompts: a hub data set, or another one (generated samples, local files)."""
    source, hub = str(header.options("data").get("_target_", "")), header.options("task").get("hub")
    details = {"source": source.rpartition(".")[2], **{name: str(text) for name, text in header.data.items()}}
    if source.endswith("HubSource") and isinstance(hub, Mapping) and hub.get("path"):
        repository = {"hf_repo": hub["path"], "hf_split": hub.get("split"), "samples_number": hub.get("rows")}
        fields = {name: value for name, value in repository.items() if value is not None}
        return {
            "dataset_name": header.task.name,
            "source_type": "hf_dataset",
            **fields,
            "additional_details": {**details, "revision": str(hub.get("revision"))},
        }
    return {"dataset_name": header.task.name, "source_type": "other", "additional_details": details}


def _generation(header: RunHeader) -> dict[str, Any]:
    decode = header.decode
    arguments = {
        "temperature": 0.0 if decode.greedy else decode.temperature,
        "top_p": decode.top_p,
        "top_k": decode.top_k,
        "max_tokens": decode.max_new_tokens,
        "execution_command": header.command or header.provenance.command,
    }
    recorded = {name: value for name, value in arguments.items() if value not in (None, "")}
    return {"generation_args": recorded, "additional_details": {"mode": decode.mode, "seed": str(header.seed)}}


def _samples(run: Run, evaluation_id: str) -> Iterator[dict[str, Any]]:
    header = run.header
    for domain in _score_names(header):
        for arm in PAIR:
            rows = _scored(run, arm, domain).sort_values(["repeat", "prompt_index", "turn"])
            for row in rows.to_dict("records"):
                yield {
                    "schema_version": VERSION,
                    "evaluation_name": _evaluation_name(header, domain),
                    "evaluation_result_id": _score_id(evaluation_id, arm, domain),
                    **_sample(row),
                }


def _sample(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return an answer as a sample, without keys that all share."""
    unknown = f"not in the record; SHA-256 of its token ids: {row['prompt_sha256']}"
    source = {"source": "output.raw", "extracted_value": row["text"], "extraction_method": "custom"}
    total_ms = row["prefill_ms"] + row["decode_ms"]
    return {
        "sample_id": str(row["prompt_id"]),
        "interaction_type": "single_turn",
        "input": {"raw": unknown, "reference": []},
        "output": {"raw": [row["text"]]},
        "answer_attribution": [{"turn_idx": 0, **source, "is_terminal": True}],
        "evaluation": {"score": row["score"], "is_correct": bool(row["score"] == 1.0)},
        "token_usage": {
            "input_tokens": row["prompt_len"],
            "output_tokens": row["new_tokens"],
            "total_tokens": row["prompt_len"] + row["new_tokens"],
        },
        "performance": {
            "latency_ms": total_ms,
            "time_to_first_token_ms": row["prefill_ms"],
            "generation_time_ms": row["decode_ms"],
        },
        "metadata": {
            "arm": str(row["arm"]),
            "domain": str(row["domain"]),
            "repeat": str(row["repeat"]),
            "turn": str(row["turn"]),
            "finish_reason": str(row["finish_reason"]),
            "prompt_sha256": str(row["prompt_sha256"]),
        },
    }
