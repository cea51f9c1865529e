"""Reproduction of a record: check it, run it again from its own config, and answer part by part."""
