# SPDX-License-Identifier: Apache-2.0
"""
Recover speeds from poses: the least-squares system that start speed and action fit share.

Over each interval a vehicle moves by the mean of its two end velocities (trapezoid), so T
displacements give 2T linear equations for T + 1 speeds once the headings are known. They alone
leave an alternating speed undetermined; third differences of the speed are therefore penalised.

Axes: T intervals, T + 1 poses. Headings in rad, modulo 2 pi, in the frame of the displacements.
Source: NVlabs/alpamayo, action_space/{unicycle_accel_curvature,utils}.py (constants and method).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FitConstants:
    """
    Weights of the regularised fits, as the model's labels were made with.

    A `lambda` is divided by the power of the interval that its differences carry (dt^6 for third
    differences of heading and speed, dt^4 for second ones of acceleration and curvature), so at
    dt = 0.1 s every smoothing term has weight 1.
    """

    heading_lambda: float = 1e-6
    heading_ridge: float = 1e-8
    speed_lambda: float = 1e-6
    speed_ridge: float = 1e-4
    accel_lambda: float = 1e-4
    accel_ridge: float = 1e-4
    curvature_lambda: float = 1e-4
    curvature_ridge: float = 1e-4


@lru_cache(maxsize=32)
def roughness(n: int, order: int) -> NDArray[np.float64]:
    """
    Quadratic form that sums the squared finite differences of a sequence.

    :param n: length of the sequence, more than `order`
    :param order: order of the differences
    :return: (n, n) float64, read-only
    """
    differences = np.diff(np.eye(n), order, axis=0)
    form: NDArray[np.float64] = differences.T @ differences
    form.setflags(write=False)
    return form


def speed_system(
    heading_rad: NDArray[np.float64],
    displacement_m: NDArray[np.float64],
    dt_s: float,
    constants: FitConstants,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """
    Set up the normal equations of all speeds, smoothing included, ridge left to the caller.

    :param heading_rad: (T + 1,)
    :param displacement_m: (T, 2) x and y of each pose minus the one before
    :return: matrix (T + 1, T + 1) and right-hand side (T + 1,), both float64
    """
    n = heading_rad.shape[0]
    directions = np.stack([np.cos(heading_rad), np.sin(heading_rad)], axis=1)
    targets_mps = displacement_m * (2.0 / dt_s)
    inner = np.arange(n - 1)
    matrix = (constants.speed_lambda / dt_s**6) * roughness(n, 3)
    matrix[inner, inner] += 1.0
    matrix[inner + 1, inner + 1] += 1.0
    coupling = np.cos(np.diff(heading_rad))
    matrix[inner, inner + 1] += coupling
    matrix[inner + 1, inner] += coupling
    rhs = np.zeros(n)
    rhs[:-1] += (directions[:-1] * targets_mps).sum(axis=1)
    rhs[1:] += (directions[1:] * targets_mps).sum(axis=1)
    return matrix, rhs
