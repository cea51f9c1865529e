"""A run: checked options, the plan, hardware, measuring and recording it, shards, progress."""
