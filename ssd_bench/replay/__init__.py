"""Replay: predicted times of the steps of a record on a described machine. All results are predictions.

Drafts and acceptance are those of the record; only time is predicted. The machine is either that of the record,
described by its latency profile (`validate` reports the accuracy), or a GPU described by its data sheet
(`hardware=sim_<gpu>`), for which the model may have another size. No torch.
"""
