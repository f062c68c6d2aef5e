"""Datatypes of the Open Inference Protocol as torch and numpy call them."""

from __future__ import annotations

import numpy as np
import torch

TORCH: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
NUMPY: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(np.uint16 if name == "BF16" else str(dtype).removeprefix("torch.")) for name, dtype in TORCH.items()
}
