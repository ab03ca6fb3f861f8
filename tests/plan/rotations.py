# SPDX-License-Identifier: Apache-2.0
"""Rotations from roll, pitch and yaw, as matrices and as quaternions, independent of the code."""

import math

import numpy as np
from numpy.typing import NDArray


def matrix_of(roll: float, pitch: float, yaw: float) -> NDArray[np.float64]:
    cr, sr = math.cos(roll), math.sin(roll)
    cp, sp = math.cos(pitch), math.sin(pitch)
    cy, sy = math.cos(yaw), math.sin(yaw)
    about_x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    about_y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    about_z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    return about_z @ about_y @ about_x


def quaternion_of(roll: float, pitch: float, yaw: float) -> NDArray[np.float64]:
    """In the order x, y, z, w, by the half-angle formulas."""
    cr, sr = math.cos(roll / 2), math.sin(roll / 2)
    cp, sp = math.cos(pitch / 2), math.sin(pitch / 2)
    cy, sy = math.cos(yaw / 2), math.sin(yaw / 2)
    return np.array(
        [
            sr * cp * cy - cr * sp * sy,
            cr * sp * cy + sr * cp * sy,
            cr * cp * sy - sr * sp * cy,
            cr * cp * cy + sr * sp * sy,
        ]
    )
