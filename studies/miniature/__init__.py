"""The miniature: a generated corpus, and a small decoder trained on it to be skippable."""
