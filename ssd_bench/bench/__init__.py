"""Measurements of the engine: on one model and machine, and on known model sizes with random weights."""
