# SPDX-License-Identifier: Apache-2.0
"""
Round the constants that no checkpoint holds, as the released model does.

The released loader builds the module while the default dtype is bfloat16, so the Fourier
frequencies and the four numbers that normalise actions exist in bfloat16 only. Captures of the
running model reproduce with the rounded numbers and not with the exact ones
(yyshin-katech/alpamayo2-step-viewer). 'bf16' does the same, 'none' keeps the exact numbers.
"""

from dataclasses import replace

import torch

from alpamayo_node.contracts import ActionSpace
from alpamayo_node.errors import ConfigError

BUFFER_ROUNDINGS = ('bf16', 'none')


def round_buffer(values: torch.Tensor, rounding: str) -> torch.Tensor:
    """
    Round constants to what the model computes with.

    :param values: any shape, floating point
    :param rounding: one of `BUFFER_ROUNDINGS`
    :return: same shape, float32
    :raises ConfigError: the rounding is unknown
    """
    if rounding not in BUFFER_ROUNDINGS:
        rule = f'must be one of {", ".join(BUFFER_ROUNDINGS)}'
        raise ConfigError('buffer_rounding', rounding, rule)
    dtype = torch.bfloat16 if rounding == 'bf16' else torch.float32
    return values.to(dtype).to(torch.float32)


def round_action_space(space: ActionSpace, rounding: str) -> ActionSpace:
    """
    Round the four numbers that turn normalised actions into physical ones.

    :param space: as configured
    :param rounding: 'bf16', or 'none' to leave it as it is, in float64
    :return: what the integration of a plan must use
    :raises ConfigError: the rounding is unknown
    """
    names = ('accel_mean', 'accel_std', 'curvature_mean', 'curvature_std')
    exact = torch.tensor([getattr(space, name) for name in names], dtype=torch.float64)
    rounded = round_buffer(exact, rounding).tolist()
    if rounding == 'none':
        return space
    return replace(space, **dict(zip(names, rounded, strict=True)))
