# SPDX-License-Identifier: Apache-2.0
"""
The chip's number formats, in torch: bf16, and block formats with one exponent over 16 values.

A block is 16 neighbouring values of a row. Its exponent is that of the largest; each value keeps a
sign and 7 (bfp8) or 3 (bfp4) bits, rounded to nearest, ties to even, and held at the largest.
"""

import torch

BLOCK = 16
N_BITS = {'BFLOAT8_B': 7, 'BFLOAT4_B': 3}


def round_to(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """
    Round to what a format can hold.

    :param values: (..., W) float32, W a multiple of 16 for the block formats
    :param dtype: 'BFLOAT16', 'BFLOAT8_B', 'BFLOAT4_B' or 'FLOAT32'
    :return: like values
    """
    if dtype == 'FLOAT32':
        return values
    if dtype == 'BFLOAT16':
        return values.bfloat16().float()
    return _round_blocks(values, N_BITS[dtype])


def _round_blocks(values: torch.Tensor, n_bits: int) -> torch.Tensor:
    blocks = values.reshape(-1, BLOCK)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    # frexp gives a fraction in [0.5, 1): the top bit of the largest value weighs half of it.
    exponent = torch.frexp(largest).exponent
    step = torch.ldexp(torch.ones_like(largest), exponent - n_bits)
    limit = 2**n_bits - 1
    rounded = (blocks / step).round().clamp(-limit, limit) * step
    # One exponent for all: a block with a NaN or an infinity holds no number at all.
    rounded = torch.where(largest.isfinite(), rounded, torch.nan)
    return torch.where(largest == 0, torch.zeros_like(rounded), rounded).reshape(values.shape)
