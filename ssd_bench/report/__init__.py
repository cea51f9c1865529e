"""Tables, figures and pages from records on disk; no module here imports torch."""
