"""Runs behind a paper's tables and figures: run sets, scales, outcomes."""
