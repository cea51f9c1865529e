"""Replay: the steps of a record, timed by a description of a machine. All results are predictions.

Drafts and acceptance are those of the record; only time is predicted. The machine is the one that made the record,
described by its latency profile (`validate` reports how well that works), or a GPU that is not at hand, described by
its data sheet (`hardware=sim_<gpu>`); the model may have another size. No torch.
"""
