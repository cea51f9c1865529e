"""Compiled operations for CPUs."""
