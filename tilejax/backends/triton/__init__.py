"""Programs as Pallas kernels for NVIDIA GPUs, through Triton: each parallel nest is one launch."""
