"""The miniature: a generated corpus, a small decoder trained on it to be skippable, and its weights."""
