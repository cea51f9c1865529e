"""Replay: the steps of a record, timed by a description of a machine; every number it gives is a prediction.

What a method drafted and what was accepted is taken from the record. Only time is predicted: of the machine that made
the record from its own latency profile (`validate` says how well that works), or of a GPU that is not at hand from
its data sheet (`hardware=sim_<gpu>`), also for a model of another size. No torch.
"""

from ssd_bench.replay.machine import Machine, own_profile
from ssd_bench.replay.predict import predict, step_times
from ssd_bench.replay.roofline import Simulated, simulated, simulated_names
from ssd_bench.replay.shapes import SHAPES, shape_named
from ssd_bench.replay.validation import validate
from ssd_bench.shape import Shape

__all__ = [
    "SHAPES",
    "Machine",
    "Shape",
    "Simulated",
    "own_profile",
    "predict",
    "shape_named",
    "simulated",
    "simulated_names",
    "step_times",
    "validate",
]
