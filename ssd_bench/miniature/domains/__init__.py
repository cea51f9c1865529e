"""Generators of the miniature's corpus, one file a domain; nothing in them is taken from another text."""
