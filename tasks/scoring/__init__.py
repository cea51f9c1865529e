"""Scorers of answers: one file per kind of answer, each with a `Scorer` that tasks share."""
