"""A run: checked options, plan, hardware, measurement and record, shards, progress."""
