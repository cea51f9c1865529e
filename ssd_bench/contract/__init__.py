"""Contracts of methods and tasks, and the types in them. Knows no method, task, paper or device."""
