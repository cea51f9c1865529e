"""Parts shared by several papers' figures: curves, streams, layers, style."""
