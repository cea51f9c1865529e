"""The miniature: a generated corpus, a small decoder trained on it to be skippable, and its weights."""

from pathlib import Path

WEIGHTS = Path(__file__).with_name("weights")
