"""The decoder, its KV cache, checkpoints, and the backends that run forward passes."""
