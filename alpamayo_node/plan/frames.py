# SPDX-License-Identifier: Apache-2.0
"""
Rotate, interpolate and place poses.

Quaternions are (..., 4) float64 in the order x, y, z, w and turn vectors of the body frame into
the frame that the pose is given in; `multiply(a, b)` turns by b first. Angles in rad, positive
counter-clockwise about z (up). Roll and pitch are kept: nothing here is flattened to a plane.
"""

from collections.abc import Sequence
import math

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.contracts import EgoStart
from alpamayo_node.contracts import Trajectory

type Array = NDArray[np.float64]

QUATERNION_NORM_TOLERANCE = 1e-3
"""How far a quaternion's norm may be from 1 before we stop believing that it is a rotation."""

_NEARLY_PARALLEL_RAD = 1e-6
_FLIP_VECTOR: Array = np.array([-1.0, -1.0, -1.0, 1.0])


def is_rotation(quaternion: Sequence[float]) -> bool:
    """
    Whether a quaternion is finite and of norm 1, within `QUATERNION_NORM_TOLERANCE`.

    :param quaternion: x, y, z, w
    """
    # false for NaN, which fails every comparison
    return abs(math.hypot(*quaternion) - 1.0) <= QUATERNION_NORM_TOLERANCE


def normalised(quaternions: Array) -> Array:
    """
    Scale quaternions to norm 1.

    :param quaternions: (..., 4), none of norm 0
    :return: (..., 4)
    """
    return quaternions / norms(quaternions)[..., None]


def norms(vectors: Array) -> Array:
    """
    Euclidean lengths; infinite, and no warning, where they are beyond float64.

    :param vectors: (..., n)
    :return: (...)
    """
    with np.errstate(over='ignore'):
        lengths: Array = np.sqrt((vectors**2).sum(axis=-1))
    return lengths


def conjugate(quaternions: Array) -> Array:
    """
    Invert unit quaternions.

    :param quaternions: (..., 4)
    :return: (..., 4)
    """
    return quaternions * _FLIP_VECTOR


def multiply(left: Array, right: Array) -> Array:
    """
    Chain rotations: the result turns by `right` first, then by `left`.

    :param left: (..., 4), broadcast against `right`
    :param right: (..., 4)
    :return: (..., 4)
    """
    left_v, left_w = left[..., :3], left[..., 3:]
    right_v, right_w = right[..., :3], right[..., 3:]
    vector = left_w * right_v + right_w * left_v + _cross(left_v, right_v)
    scalar = left_w * right_w - (left_v * right_v).sum(axis=-1, keepdims=True)
    return np.concatenate([vector, scalar], axis=-1)


def rotate(quaternions: Array, vectors: Array) -> Array:
    """
    Turn vectors by unit quaternions.

    :param quaternions: (..., 4), broadcast against `vectors`
    :param vectors: (..., 3)
    :return: (..., 3)
    """
    axis, scalar = quaternions[..., :3], quaternions[..., 3:]
    twice = 2.0 * _cross(axis, vectors)
    turned: Array = vectors + scalar * twice + _cross(axis, twice)
    return turned


def yaw_quaternions(yaw_rad: Array) -> Array:
    """
    Rotations about z.

    :param yaw_rad: (...)
    :return: (..., 4)
    """
    zero = np.zeros_like(yaw_rad)
    return np.stack([zero, zero, np.sin(0.5 * yaw_rad), np.cos(0.5 * yaw_rad)], axis=-1)


def yaws_of(quaternions: Array) -> Array:
    """
    Heading of the body's x axis, seen along z.

    :param quaternions: (..., 4), unit
    :return: (...) in rad, in [-pi, pi]
    """
    x, y, z, w = np.moveaxis(quaternions, -1, 0)
    yaw_rad: Array = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    return yaw_rad


def slerp(start: Array, end: Array, fraction: Array) -> Array:
    """
    Turn at constant rate from one rotation to another, the short way round.

    :param start: (M, 4), unit
    :param end: (M, 4), unit
    :param fraction: (M,), 0 at `start` and 1 at `end`; outside of [0, 1] it extrapolates
    :return: (M, 4), unit
    """
    end = np.where((start * end).sum(axis=1, keepdims=True) < 0.0, -end, end)
    # half the angle between them; accurate near 0, where an arc cosine is not
    angle_rad = 2.0 * np.arctan2(norms(end - start), norms(end + start))
    is_flat = angle_rad < _NEARLY_PARALLEL_RAD
    safe_rad = np.where(is_flat, 1.0, angle_rad)
    weight_start = np.where(
        is_flat, 1.0 - fraction, np.sin((1.0 - fraction) * safe_rad) / np.sin(safe_rad)
    )
    weight_end = np.where(is_flat, fraction, np.sin(fraction * safe_rad) / np.sin(safe_rad))
    return normalised(weight_start[:, None] * start + weight_end[:, None] * end)


def rotation_angles(quaternions: Array) -> Array:
    """
    How far unit quaternions turn, about whatever axis.

    :param quaternions: (..., 4)
    :return: (...) in rad, in [0, pi]
    """
    angle_rad: Array = 2.0 * np.arctan2(norms(quaternions[..., :3]), np.abs(quaternions[..., 3]))
    return angle_rad


def waypoints_in_fixed_frame(trajectory: Trajectory, start: EgoStart) -> tuple[Array, Array]:
    """
    Put waypoints where they belong: behind the ego pose at t0, not behind any later one.

    The plan lies in the ego x-y plane at t0, which the vehicle's roll and pitch may tilt.

    :param trajectory: N waypoints in the ego frame at t0
    :param start: the ego pose at t0 in the fixed frame
    :return: positions (N, 3) in m and unit quaternions (N, 4), in `start.frame_id`
    """
    ego_in_fixed = normalised(np.array(start.orientation_xyzw))
    flat = np.zeros_like(trajectory.x_m)
    in_ego_m = np.stack([trajectory.x_m, trajectory.y_m, flat], axis=1)
    positions_m = np.array(start.position_m) + rotate(ego_in_fixed, in_ego_m)
    orientations = multiply(ego_in_fixed, yaw_quaternions(trajectory.heading_rad))
    return positions_m, normalised(orientations)


def _cross(left: Array, right: Array) -> Array:
    """Cross product; np.cross costs several times as much on small arrays."""
    lx, ly, lz = left[..., 0], left[..., 1], left[..., 2]
    rx, ry, rz = right[..., 0], right[..., 1], right[..., 2]
    return np.stack([ly * rz - lz * ry, lz * rx - lx * rz, lx * ry - ly * rx], axis=-1)
