"""Costs of passes: latency profiles, data sheets of GPUs, and the speedups that follow from them."""
