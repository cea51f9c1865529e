"""Who runs a pass: compiled kernels for CPUs, or PyTorch anywhere."""
