"""The papers' claims, and their verdicts from our records."""
