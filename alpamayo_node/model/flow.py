# SPDX-License-Identifier: Apache-2.0
"""
Carry noise to an action along a velocity field.

Time runs from 0 (noise) to 1 (action). Explicit Euler steps of equal length take the velocity at
the left end of each step, so the network never sees t = 1. Everything is float32. Whether the
result is finite and sane is for the gate of the plan to say.

Axes: N waypoints, A action channels.
Source: `diffusion/flow_matching.py` of lucamodica/alpamayo2 @746350a7.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
import torch

from alpamayo_node.contracts import EulerStep
from alpamayo_node.errors import ConfigError

type Velocity = Callable[[NDArray[np.float32], float], NDArray[np.float32]]


def time_grid(n_steps: int) -> NDArray[np.float32]:
    """
    Instants at which steps begin and end.

    :param n_steps: at least 1
    :return: (n_steps + 1,) float32, the bits of torch's `linspace` from 0 to 1
    :raises ConfigError: n_steps is below 1
    """
    if n_steps < 1:
        raise ConfigError('n_steps', n_steps, 'must be at least 1')
    grid: NDArray[np.float32] = torch.linspace(0.0, 1.0, n_steps + 1, dtype=torch.float32).numpy()
    return grid


def integrate(
    velocity: Velocity,
    noise: NDArray[np.float32],
    n_steps: int,
    on_step: Callable[[EulerStep], None] | None = None,
) -> NDArray[np.float32]:
    """
    Walk from t = 0 to t = 1.

    :param velocity: called n_steps times with (x, t)
    :param noise: (N, A) float32; left unchanged
    :param n_steps: at least 1
    :param on_step: receives each step's t, x and v, in order
    :return: (N, A) float32
    :raises ConfigError: n_steps is below 1
    """
    grid = time_grid(n_steps)
    x = noise.copy()
    for i_step in range(n_steps):
        t = float(grid[i_step])
        v = velocity(x, t)
        if on_step:
            on_step(EulerStep(t=t, x=x, v=v))
        x = x + (grid[i_step + 1] - grid[i_step]) * v
    return x
