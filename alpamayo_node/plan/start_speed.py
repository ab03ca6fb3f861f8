# SPDX-License-Identifier: Apache-2.0
"""
Estimate the speed at t0 from the ego positions, the way the model's training labels did.

The estimate leans on the last two positions (about +14.3 and -15.9 m/s per metre): one centimetre
of noise moves it by 0.2 m/s, one bad sample by several m/s. Whoever uses it should compare it with
a measured speed.

Source: NVlabs/alpamayo, action_space/unicycle_accel_curvature.py.
"""

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.plan.smoothing import FitConstants
from alpamayo_node.plan.smoothing import speed_system

_CONSTANTS = FitConstants()


def estimate_start_speed(
    xy_m: NDArray[np.float64],
    yaw_rad: NDArray[np.float64],
    dt_ns: int,
    constants: FitConstants = _CONSTANTS,
) -> float:
    """
    Fit speeds to equally spaced poses and take the last one.

    :param xy_m: (K, 2) float64, oldest first, in any frame near the ego vehicle; K at least 4
    :param yaw_rad: (K,) float64 in the same frame; need not be unwrapped
    :param dt_ns: spacing of the poses
    :return: speed at the last pose in m/s, negative when driving backwards
    """
    matrix, rhs = speed_system(yaw_rad, np.diff(xy_m, axis=0), dt_ns / NS_PER_S, constants)
    matrix[np.diag_indices_from(matrix)] += constants.speed_ridge
    return float(np.linalg.solve(matrix, rhs)[-1])
