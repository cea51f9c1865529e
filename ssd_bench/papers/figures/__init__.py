"""Parts that figures of several papers share: curves, streams, layers, style."""
