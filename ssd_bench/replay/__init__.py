"""Replay: the steps of a record, timed by a description of a machine; every number it gives is a prediction.

What a method drafted and what was accepted is taken from the record. Only time is predicted: of the machine that made
the record from its own latency profile (`validate` says how well that works), or of a GPU that is not at hand from
its data sheet (`hardware=sim_<gpu>`), also for a model of another size. No torch.
"""
