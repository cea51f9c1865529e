"""Comparison of two sets of records over the prompts that both have."""
