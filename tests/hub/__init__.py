"""A Hugging Face hub on this machine, for the real clients, and whole runs that go through it."""
