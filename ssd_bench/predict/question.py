"""Options of `advise`: the model, its sizes, and the machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ssd_bench.conf import choices, plug_in_with
from ssd_bench.console import count, options
from ssd_bench.contract.shape import Shape
from ssd_bench.cost.reference import reference_machine, reference_names
from ssd_bench.cost.roofline import PREFIX, gpu_named, simulated_machine, simulated_names
from ssd_bench.cost.shapes import known_shape, shaped_models
from ssd_bench.cost.work import Machine
from ssd_bench.errors import NOT_GIVEN, ConfigError
from ssd_bench.paths import local_path
from ssd_bench.predict.acceptance import CONTEXT
from ssd_bench.predict.replay import OWN, measured_machine
from ssd_bench.records.header import RunHeader
from ssd_bench.records.pack import records_folder
from ssd_bench.results.models import model_title

OPTIONS = ("model", "model.path", "hardware", "task", "runs_dir", "context", "devices")
LOCAL = "local"
"""Choice of `conf/model` for a checkpoint in a user's folder."""


@dataclass(frozen=True)
class Question:
    """Checked options of the command.

    Attributes:
        model: choice of `conf/model`.
        path: folder of `model=local`, else None.
        machines: with their names in the option; None for `own`, the machine of the records.
        task: "" for all tasks.
    """

    model: str
    path: Path | None
    shape: Shape
    machines: Sequence[tuple[str, Machine | None]]
    task: str
    runs_dir: Path
    context: int

    @property
    def model_name(self) -> str:
        """Name of the model in texts: its choice or, if local, its folder."""
        return model_title(self.model) if self.path is None else self.path.name

    def has_model(self, header: RunHeader) -> bool:
        """Return whether a run is of exactly this model: its name and sizes, and for a local model its folder."""
        recorded = header.model
        sizes = self.shape.n_layers, self.shape.n_params
        if recorded.name != self.model or (recorded.n_layers, recorded.n_params) != sizes:
            return False
        stored = header.options("model").get("path")
        return self.path is None or (stored is not None and local_path("model.path", stored) == self.path)


def parse_question(arguments: Sequence[str]) -> Question:
    """Check the options, before any record is read.

    Raises:
        ConfigError: an unusable option.
    """
    values = options(arguments, OPTIONS)
    if "model" not in values:
        raise ConfigError("model", NOT_GIVEN, _model_choices())  # composes every model, so only for the message
    if "hardware" not in values:
        raise ConfigError("hardware", NOT_GIVEN, "hardware=sim_<gpu>")
    names = simulated_names() if values["hardware"] == "all" else values["hardware"].split(",")
    devices = count("devices", values["devices"]) if "devices" in values else None
    for name in names:
        if name != OWN and "/" not in name:
            gpu_named(name)
    if OWN in names and devices is not None:
        raise ConfigError("devices", devices, reason="only hardware=sim_<gpu> takes this option")
    tasks = choices("task")
    if values.get("task", tasks[0]) not in tasks:
        raise ConfigError("task", values["task"], f"one of {', '.join(tasks)}")
    context = count("context", values.get("context", str(CONTEXT)))
    # without the option, no records are needed
    runs_dir = records_folder("runs_dir", values.get("runs_dir", "runs"), missing_ok="runs_dir" not in values)
    path, shape = _model(values["model"], values.get("model.path"))
    if shape.context is not None and context >= shape.context:
        raise ConfigError("context", context, f"below {shape.context}, the context of {path or values['model']}")
    machines = [(name, None if name == OWN else machine_named(name, shape, devices)) for name in names]
    return Question(values["model"], path, shape, machines, values.get("task", ""), runs_dir, context)


def _model_choices() -> str:
    return f"one of {', '.join(shaped_models())}, or model=local model.path=DIR"


def _model(name: str, path_text: str | None) -> tuple[Path | None, Shape]:
    """Return a model's folder (None for a choice of `model=`) and sizes."""
    if name == LOCAL:
        if path_text is None:
            raise ConfigError("model.path", NOT_GIVEN, "the folder of a checkpoint in Hugging Face format")
        path = local_path("model.path", path_text)
        from ssd_bench.model.checkpoint import ModelSource  # imports torch, which models of conf/model do not need
        from ssd_bench.model.weights import declared_architecture

        # refuses what a run would refuse, and reads no weights
        return path, declared_architecture(ModelSource(LOCAL, "plain", path=str(path)).open())
    if path_text is not None:
        raise ConfigError("model.path", path_text, reason="only model=local takes this option")
    plug_in_with("model", name)
    shape = known_shape(name)
    if shape is None:
        raise ConfigError("model", name, _model_choices())
    return None, shape


def machine_named(name: str, shape: Shape, devices: int | None) -> Machine:
    """Return a reference machine or a simulated GPU, whose measured costs for these sizes count before its data sheet.

    Raises:
        ConfigError: a reference machine of other sizes, or of several devices; or too few devices.
    """
    if "/" in name:
        machine = measured_machine(name)
        if devices not in (None, 1) or not _same_sizes(known_shape(machine.model), shape):
            expected = f"sim_<gpu>: {name} has measured costs of a model of other sizes, or of one device"
            raise ConfigError("hardware", name, expected)
        return machine
    start = f"{name.removeprefix(PREFIX)}/"
    for other in reference_names() if devices in (None, 1) else ():
        if other.startswith(start) and _same_sizes(known_shape(reference_machine(other).model), shape):
            return reference_machine(other)
    return simulated_machine(name, shape, devices)


def _same_sizes(a: Shape | None, b: Shape) -> bool:
    """Return whether two models cost the same at every context."""
    names = [field.name for field in fields(Shape) if field.name != "context"]
    return a is not None and all(getattr(a, name) == getattr(b, name) for name in names)
