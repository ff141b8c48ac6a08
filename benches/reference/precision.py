"""Makes `transformers` compute in float64 throughout.

A model of transformers that is converted to float64 still goes through float32 in places: RMSNorm, the eager softmax
and the rotary tables say `torch.float32` or `.float()` so that bf16 models are accurate enough. Within
`wholly_float64` those words mean float64. Finite differences in exported.py would not agree with the gradients to
eight digits if anything were left.
"""

import contextlib

import torch

FLOAT32 = torch.float32


@contextlib.contextmanager
def wholly_float64():
    """Every float32 that code names in the meantime is a float64, and so is every tensor made without a dtype."""
    float_method, default = torch.Tensor.float, torch.get_default_dtype()
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32 = torch.float = FLOAT32
        torch.Tensor.float = float_method
        torch.set_default_dtype(default)
