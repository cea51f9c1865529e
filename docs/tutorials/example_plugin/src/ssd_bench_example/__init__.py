"""A method, a task and a machine for ssd-bench."""
