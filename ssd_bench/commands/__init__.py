"""The commands of `python -m ssd_bench`, one file each; the first line of a docstring describes the command."""
