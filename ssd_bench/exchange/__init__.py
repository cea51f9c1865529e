"""Records as a pandas frame, and export of layer sets."""
