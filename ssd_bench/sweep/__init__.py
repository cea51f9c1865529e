"""Sweeps: the runs of experiments and multiruns, their description and their duration."""
