"""A Hugging Face hub on this machine, for the real clients, and whole runs through it."""
