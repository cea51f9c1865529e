"""Generators of the miniature's corpus, one file per domain; their texts, all original, are in the YAML next to it."""
