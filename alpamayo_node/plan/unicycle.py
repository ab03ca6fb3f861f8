# SPDX-License-Identifier: Apache-2.0
"""
Turn actions into waypoints, and waypoints back into actions.

An action is one acceleration and one curvature per interval; a unicycle that starts in the origin
of the ego frame with speed v0 and obeys them passes through the waypoints. Speeds are never
clamped here, so strong braking ends in reverse: `plan.adjust` decides what to do about it.

Going back is a chain of regularised fits (heading, speed, acceleration, curvature). They smooth,
so the round trip is close (1 cm, 0.01 of a normalised action) on smooth actions only.

Axes: N intervals and waypoints; waypoint i ends interval i. Ego frame at t0: x forward, y left,
counter-clockwise heading and curvature positive. All numbers float64.
Source: NVlabs/alpamayo, action_space/{unicycle_accel_curvature,utils}.py (formulas, constants).
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import ActionSpace
from alpamayo_node.contracts import Trajectory
from alpamayo_node.plan.smoothing import FitConstants
from alpamayo_node.plan.smoothing import roughness
from alpamayo_node.plan.smoothing import speed_system

type Channel = NDArray[np.float64]

_CONSTANTS = FitConstants()


def denormalise(
    action: NDArray[np.float32] | NDArray[np.float64], space: ActionSpace
) -> tuple[Channel, Channel]:
    """
    Give a normalised action its units; nothing is clipped.

    :param action: (N, 2), dimensionless
    :return: acceleration (N,) in m/s² and curvature (N,) in 1/m
    """
    accel, curvature = action.astype(np.float64).T
    return (
        accel * space.accel_std + space.accel_mean,
        curvature * space.curvature_std + space.curvature_mean,
    )


def normalise(accel_mps2: Channel, curvature_1pm: Channel, space: ActionSpace) -> Channel:
    """
    Take the units of an action away again.

    :param accel_mps2: (N,)
    :param curvature_1pm: (N,)
    :return: (N, 2) float64, dimensionless
    """
    accel = (accel_mps2 - space.accel_mean) / space.accel_std
    curvature = (curvature_1pm - space.curvature_mean) / space.curvature_std
    return np.stack([accel, curvature], axis=1)


def integrate(
    accel_mps2: Channel, curvature_1pm: Channel, v0_mps: float, dt_ns: int
) -> Trajectory:
    """
    Roll an action out from the ego pose at t0.

    Non-finite values are carried through, so that whoever judges the result sees them.

    :param accel_mps2: (N,) over each interval
    :param curvature_1pm: (N,) over each interval
    :param v0_mps: speed at t0
    :param dt_ns: length of an interval
    :return: N waypoints
    """
    with np.errstate(invalid='ignore', over='ignore'):
        gains_mps = np.cumsum(accel_mps2) * (dt_ns / NS_PER_S)
        speeds_mps = np.concatenate([[v0_mps], v0_mps + gains_mps])
        return roll_out(speeds_mps, accel_mps2, curvature_1pm, dt_ns)


def roll_out(
    speeds_mps: Channel, accel_mps2: Channel, curvature_1pm: Channel, dt_ns: int
) -> Trajectory:
    """
    Place waypoints for speeds that are already known.

    :param speeds_mps: (N + 1,) at t0 and at each waypoint
    :param accel_mps2: (N,), for the record; must be the slope of the speeds
    :param curvature_1pm: (N,) over each interval
    :param dt_ns: length of an interval
    :return: N waypoints
    """
    arcs_m = arc_lengths(speeds_mps, dt_ns)
    headings_rad = np.concatenate([[0.0], np.cumsum(curvature_1pm * arcs_m)])
    half_dt_s = 0.5 * dt_ns / NS_PER_S
    vx_mps = speeds_mps * np.cos(headings_rad)
    vy_mps = speeds_mps * np.sin(headings_rad)
    return Trajectory(
        time_from_start_ns=np.arange(1, len(arcs_m) + 1, dtype=np.int64) * dt_ns,
        x_m=half_dt_s * np.cumsum(vx_mps[:-1] + vx_mps[1:]),
        y_m=half_dt_s * np.cumsum(vy_mps[:-1] + vy_mps[1:]),
        heading_rad=headings_rad[1:],
        speed_mps=speeds_mps[1:],
        accel_mps2=accel_mps2,
        curvature_1pm=curvature_1pm,
    )


def arc_lengths(speeds_mps: Channel, dt_ns: int) -> Channel:
    """
    Signed distance driven over each interval at constant acceleration.

    :param speeds_mps: (N + 1,) at the ends of the intervals
    :return: (N,) in m, negative when driving backwards
    """
    return (speeds_mps[:-1] + speeds_mps[1:]) * (0.5 * dt_ns / NS_PER_S)


def fit_actions(
    x_m: Channel,
    y_m: Channel,
    heading_rad: Channel,
    v0_mps: float,
    dt_ns: int,
    constants: FitConstants = _CONSTANTS,
) -> tuple[Channel, Channel]:
    """
    Find the action whose roll-out passes near given waypoints.

    The ridge makes each system positive definite in float64: no solve fails on finite input.

    :param x_m: (N,) in the ego frame at t0, N at least 4
    :param y_m: (N,)
    :param heading_rad: (N,); need not be unwrapped
    :param v0_mps: speed at t0, taken as true
    :param dt_ns: spacing of the waypoints
    :return: acceleration (N,) in m/s² and curvature (N,) in 1/m
    """
    dt_s = dt_ns / NS_PER_S
    headings_rad = _fit_headings(heading_rad, dt_s, constants)
    displacement_m = np.diff(np.stack([x_m, y_m], axis=1), axis=0, prepend=0.0)
    speeds_mps = _fit_speeds(headings_rad, displacement_m, v0_mps, dt_s, constants)
    smoother = _smoother(len(x_m), 2, constants.accel_lambda / dt_s**4, constants.accel_ridge)
    accel_mps2 = smoother @ (np.diff(speeds_mps) / dt_s)
    arcs_m = speeds_mps[:-1] * dt_s + accel_mps2 * (0.5 * dt_s**2)
    return accel_mps2, _fit_curvature(np.diff(headings_rad), arcs_m, dt_s, constants)


def _fit_headings(heading_rad: Channel, dt_s: float, constants: FitConstants) -> Channel:
    """Smooth (N,) headings; the result (N + 1,) starts with the fixed 0 of t0."""
    unwrapped_rad = np.unwrap(np.concatenate([[0.0], heading_rad]))
    weight = constants.heading_lambda / dt_s**6
    matrix = weight * roughness(len(unwrapped_rad), 3)[1:, 1:]
    matrix[np.diag_indices_from(matrix)] += 1.0 + constants.heading_ridge
    return np.concatenate([[0.0], np.linalg.solve(matrix, unwrapped_rad[1:])])


def _fit_speeds(
    heading_rad: Channel,
    displacement_m: Channel,
    v0_mps: float,
    dt_s: float,
    constants: FitConstants,
) -> Channel:
    """Fit (N + 1,) speeds of which the first is given."""
    matrix, rhs = speed_system(heading_rad, displacement_m, dt_s, constants)
    known = matrix[1:, 0] * v0_mps
    free = matrix[1:, 1:]
    free[np.diag_indices_from(free)] += constants.speed_ridge
    return np.concatenate([[v0_mps], np.linalg.solve(free, rhs[1:] - known)])


def _fit_curvature(
    turn_rad: Channel, arcs_m: Channel, dt_s: float, constants: FitConstants
) -> Channel:
    matrix = (constants.curvature_lambda / dt_s**4) * roughness(len(arcs_m), 2)
    matrix[np.diag_indices_from(matrix)] += arcs_m**2 + constants.curvature_ridge
    return np.linalg.solve(matrix, arcs_m * turn_rad)


@lru_cache(maxsize=32)
def _smoother(n: int, order: int, weight: float, ridge: float) -> Channel:
    """Matrix (n, n) that fits a smooth sequence to a given one."""
    return np.linalg.inv(weight * roughness(n, order) + (1.0 + ridge) * np.eye(n))
