# SPDX-License-Identifier: Apache-2.0
"""
Say what speaks against a plan before anyone may follow it.

Two trajectories are looked at: the *raw* roll-out of the sampled action, which shows whether the
model lost its way, and the *adjusted* one (`plan.adjust`), which is what a vehicle would follow.

- NON_FINITE (both): a number is NaN or infinite; nothing else is judged then.
- ACCELERATION (raw): its amount is too large. Adjusting never increases it.
- CURVATURE (adjusted): its amount is too large. Where the raw one was dropped it had no meaning,
  and LOW_SPEED_HEADING bounds what dropping it did.
- LATERAL_ACCELERATION (adjusted): speed squared times curvature is too large.
- START_ERROR (both): waypoint 0 is not where v0 leads within one interval.
- REVERSAL (raw): it drives backwards too fast or too far, whatever was adjusted since; (both) a
  waypoint lies too far behind the start.
- LOW_SPEED_HEADING (difference): adjusting dropped so much heading that the plan is no longer the
  one that was sampled.

A small reversal is thus repaired and flagged; a large one refuses the plan. A limit is met when
the value equals it. At most one finding per reason, with the worst value and its waypoint.

Frame and units as in `contracts.Trajectory`.
Source of the limits: acceleration and curvature bounds of the model's action space; start and
reversal checks of autowarefoundation/alpamayo-autoware, src/alpamayo_ros; lateral limit of
autoware_planning_validator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import EgoStart
from alpamayo_node.contracts import Finding
from alpamayo_node.contracts import Trajectory
from alpamayo_node.errors import Reason
from alpamayo_node.plan.limits import require_finite_limits
from alpamayo_node.plan.unicycle import arc_lengths

type Channel = NDArray[np.float64]


@dataclass(frozen=True)
class GateLimits:
    """The worst that a valid plan may show."""

    max_accel_mps2: float = 9.8
    max_curvature_1pm: float = 0.33
    max_lateral_accel_mps2: float = 9.8
    max_start_error_m: float = 2.0
    """Distance of waypoint 0 from v0 dt straight ahead."""
    max_reverse_m: float = 2.0
    """Distance driven backwards in all, and distance of any waypoint behind the start."""
    max_reverse_speed_mps: float = 1.0
    """Of the raw roll-out, v0 included; slower reversing is repaired and flagged."""
    max_low_speed_heading_change_rad: float = 0.35
    """Heading that adjusting may have dropped, at any waypoint."""

    def __post_init__(self) -> None:
        require_finite_limits('gate', self)


def judge(
    raw: Trajectory, adjusted: Trajectory, start: EgoStart, limits: GateLimits
) -> tuple[Finding, ...]:
    """
    Check a plan against every limit.

    :param raw: as integrated from the sampled action
    :param adjusted: of the same length, as it would be followed
    :param start: where and how fast the plan starts
    :return: why the plan must not be followed; empty for a valid plan
    """
    damage = _non_finite(raw, adjusted, start)
    if damage:
        return (damage,)
    lateral_mps2 = adjusted.speed_mps**2 * adjusted.curvature_1pm
    dropped_rad = raw.heading_rad - adjusted.heading_rad
    checks = (
        _peak(Reason.ACCELERATION, raw.accel_mps2, limits.max_accel_mps2, 'm/s²'),
        _peak(Reason.CURVATURE, adjusted.curvature_1pm, limits.max_curvature_1pm, '1/m'),
        _peak(Reason.LATERAL_ACCELERATION, lateral_mps2, limits.max_lateral_accel_mps2, 'm/s²'),
        _start_error(raw, adjusted, start, limits),
        _reversal(raw, adjusted, start, limits),
        _peak(
            Reason.LOW_SPEED_HEADING, dropped_rad, limits.max_low_speed_heading_change_rad, 'rad'
        ),
    )
    return tuple(finding for finding in checks if finding)


def _peak(reason: Reason, values: Channel, limit: float, unit: str) -> Finding | None:
    """Find the largest amount of (N,) values, if it is above the limit."""
    i = int(np.abs(values).argmax())
    if abs(values[i]) <= limit:
        return None
    what = str(reason).replace('_', ' ')
    return Finding(
        reason, f'{what} {values[i]:.3f} {unit} at waypoint {i}; at most {limit} {unit}'
    )


def _non_finite(raw: Trajectory, adjusted: Trajectory, start: EgoStart) -> Finding | None:
    if not np.isfinite(start.speed_mps):
        return Finding(Reason.NON_FINITE, f'start speed is {start.speed_mps}')
    for name, values in (*_channels(raw), *_channels(adjusted)):
        is_bad = ~np.isfinite(values)
        if is_bad.any():
            i = int(is_bad.argmax())
            text = f'{name} is {values[i]} at waypoint {i} and at {int(is_bad.sum()) - 1} others'
            return Finding(Reason.NON_FINITE, text)
    return None


def _channels(trajectory: Trajectory) -> Iterator[tuple[str, Channel]]:
    return ((item.name, getattr(trajectory, item.name)) for item in fields(trajectory))


def _start_error(
    raw: Trajectory, adjusted: Trajectory, start: EgoStart, limits: GateLimits
) -> Finding | None:
    expected_m = start.speed_mps * int(raw.time_from_start_ns[0]) / NS_PER_S
    error_m = max(float(np.hypot(t.x_m[0] - expected_m, t.y_m[0])) for t in (raw, adjusted))
    if error_m <= limits.max_start_error_m:
        return None
    text = (
        f'waypoint 0 is {error_m:.2f} m from {expected_m:.2f} m ahead, where '
        f'{start.speed_mps:.2f} m/s lead; at most {limits.max_start_error_m} m'
    )
    return Finding(Reason.START_ERROR, text)


def _reversal(
    raw: Trajectory, adjusted: Trajectory, start: EgoStart, limits: GateLimits
) -> Finding | None:
    speeds_mps = np.concatenate([[start.speed_mps], raw.speed_mps])
    arcs_m = arc_lengths(speeds_mps, int(raw.time_from_start_ns[0]))
    backward_m = float(-np.minimum(arcs_m, 0.0).sum())
    x_m = np.minimum(raw.x_m, adjusted.x_m)
    i_slowest, i_behind = int(speeds_mps.argmin()), int(x_m.argmin())
    texts = []
    if speeds_mps[i_slowest] < -limits.max_reverse_speed_mps:
        where = f'waypoint {i_slowest - 1}' if i_slowest else 't0'
        texts.append(
            f'speed {speeds_mps[i_slowest]:.2f} m/s at {where}, '
            f'at least {-limits.max_reverse_speed_mps} m/s'
        )
    if backward_m > limits.max_reverse_m:
        texts.append(f'{backward_m:.2f} m driven backwards, at most {limits.max_reverse_m} m')
    if x_m[i_behind] < -limits.max_reverse_m:
        texts.append(
            f'waypoint {i_behind} lies {-x_m[i_behind]:.2f} m behind the start, '
            f'at most {limits.max_reverse_m} m'
        )
    return Finding(Reason.REVERSAL, '; '.join(texts)) if texts else None
