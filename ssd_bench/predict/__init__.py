"""Predictions: times of recorded steps on a described machine, and whether drafting pays there. No torch."""
