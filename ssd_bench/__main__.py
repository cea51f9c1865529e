"""`python -m ssd_bench`, the same as `ssd-bench` (`ssd_bench.cli`)."""

from ssd_bench.cli import entry

if __name__ == "__main__":
    entry()
