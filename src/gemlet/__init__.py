"""gemlet shares NVIDIA GPUs among unmodified CUDA programs, with guarantees."""

__version__ = "0.2.0"
