"""Predictions: times of recorded steps on a described machine, and whether drafting pays there.

Drafts and acceptance are those of a record or a paper; only time is predicted, from the work of every step. The machine
is that of the record, described by its latency profile, a reference machine whose costs were measured, or a GPU
described by its data sheet (`hardware=sim_<gpu>`), for which the model may have another size. No torch.
"""
