"""Composition: from a config to objects, and the help on their settings."""
