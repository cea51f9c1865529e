"""Checks of the papers' numbers against each other."""
