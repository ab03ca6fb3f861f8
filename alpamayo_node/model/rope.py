# SPDX-License-Identifier: Apache-2.0
"""
Rotate queries and keys by their positions.

The text model counts positions in three components (time, height, width), but the three are equal
for every token after the prompt, and so for the expert's: plain one-dimensional rope is exact, and
how the components share a head's frequencies does not matter. Keys of the context carry their
rotation already.

Axes: N own tokens, D head channels; pair j is (j, j + D/2), not (2j, 2j + 1).
Angles are computed in float32, step by step as the reference does, because at large positions the
last bits of the angle depend on it.

Source: `models/expert_utils.py` of lucamodica/alpamayo2 @746350a7 for the positions, the Qwen3-VL
text model of huggingface/transformers for the rotation.
"""

import torch


def expert_positions(n_rows: int, rope_delta: int, n_tokens: int) -> torch.Tensor:
    """
    Positions of the expert's own tokens: they follow the last row of the context.

    :param n_rows: S, rows of the context, left padding included
    :param rope_delta: position minus row index for tokens after the prompt
    :param n_tokens: N
    :return: (N,) int64, `S + rope_delta + i`
    """
    return torch.arange(n_tokens) + (n_rows + rope_delta)


def rope_tables(
    positions: torch.Tensor, head_dim: int, theta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Tabulate the rotation of each position.

    :param positions: (N,) integers
    :param head_dim: D, even
    :param theta: base of the frequencies `theta ** (-2 j / D)`
    :return: cosines, and sines with the sign that `apply_rope` needs, (N, D) float32
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles_rad = positions.to(torch.float32)[:, None] * (1.0 / theta**exponents)
    cos, sin = angles_rad.cos(), angles_rad.sin()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """
    Rotate every pair of channels: (a, b) -> (a cos - b sin, b cos + a sin).

    :param x: (N, heads, D) float32
    :param cos: (N, D) float32
    :param signed_sin: (N, D) float32, negative in the lower half
    :return: (N, heads, D) float32
    """
    other = x.roll(x.shape[-1] // 2, dims=-1)
    return (x * cos[:, None]).addcmul_(other, signed_sin[:, None])
