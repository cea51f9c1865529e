"""Generators of the miniature's corpus, one file per domain; all text in them is original."""
