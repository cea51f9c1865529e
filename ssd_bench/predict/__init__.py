"""Predictions: times of recorded steps on a described machine, and whether drafting pays there.

Drafts and acceptance are a record's or a paper's; only time is predicted, from the work of every step. The machine is
the record's, with its latency profile, a reference machine with measured costs, or a GPU by its data sheet
(`hardware=sim_<gpu>`), perhaps with another model size. No torch.
"""
