# SPDX-License-Identifier: Apache-2.0
"""
Make a roll-out drivable where the model's action is known to carry no meaning.

Three artefacts are repaired, and each repair is reported:

- *Standstill* (`STANDSTILL`): a standing vehicle whose plan hardly moves gets a clean stop.
- *Reversing* (`REVERSAL`): training labels hold next to none, so a negative speed means "stopped".
  Down to `reverse_tolerance_mps` it is held at 0 and the plan goes on, or noise around 0 would
  forbid every start from standstill. Once it falls below that, the plan ends: from where this
  dip began on, speed is exactly 0 and the pose is held, to the last waypoint.
- *Low speed* (`LOW_SPEED_HEADING`): curvature is turn per metre and blows up as the metres vanish.
  Over every interval with an end slower than `low_speed_mps` it is set to 0: heading is frozen.

A repair never makes a bad roll-out look good: the gate measures how far the *sampled* roll-out
reverses, and how much heading was frozen away, and refuses a plan beyond small amounts
(`plan.gate`). Repairs only take away: |acceleration| and |curvature| never grow, speed is never
raised above max(sampled, 0), and without a finding the very same trajectory is handed back.

Axes and frame as in `plan.unicycle`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import EgoStart
from alpamayo_node.contracts import Finding
from alpamayo_node.contracts import Trajectory
from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import Reason
from alpamayo_node.plan.limits import require_finite_limits
from alpamayo_node.plan.unicycle import arc_lengths
from alpamayo_node.plan.unicycle import roll_out

type Channel = NDArray[np.float64]


@dataclass(frozen=True)
class AdjustLimits:
    """When a sampled roll-out is repaired."""

    low_speed_mps: float = 0.6
    """Curvature is dropped below this speed; 0 switches the rule off."""
    allow_reverse: bool = False
    """Leave negative speeds as they are."""
    reverse_tolerance_mps: float = 0.1
    """Backward speed that counts as standing; beyond it the plan ends in a stop."""
    standstill_speed_mps: float = 0.1
    """A vehicle below this speed at t0 stands; 0 switches the rule off."""
    standstill_travel_m: float = 0.5
    """A standing vehicle's plan that moves less than this becomes a clean stop."""

    def __post_init__(self) -> None:
        require_finite_limits('adjust', self)
        if not isinstance(self.allow_reverse, bool):
            raise ConfigError('adjust.allow_reverse', self.allow_reverse, 'must be true or false')


def adjust(
    raw: Trajectory, start: EgoStart, limits: AdjustLimits
) -> tuple[Trajectory, tuple[Finding, ...]]:
    """
    Repair the artefacts of a roll-out.

    :param raw: as integrated from the sampled action; left unchanged
    :param start: where and how fast the plan starts
    :return: trajectory of the same length and times, and what was changed; `raw` itself when
        nothing was, or when its speeds or curvatures are not finite
    """
    speeds_mps = np.concatenate([[start.speed_mps], raw.speed_mps])
    if not (np.isfinite(speeds_mps).all() and np.isfinite(raw.curvature_1pm).all()):
        return raw, ()
    dt_ns = int(raw.time_from_start_ns[0])
    travel_m = float(np.abs(arc_lengths(speeds_mps, dt_ns)).sum())
    if (
        abs(start.speed_mps) < limits.standstill_speed_mps
        and travel_m < limits.standstill_travel_m
    ):
        return _stand(raw, speeds_mps, travel_m)
    driven_mps, reversal = _without_reverse(speeds_mps, limits)
    is_same = (driven_mps[:-1] == speeds_mps[:-1]) & (driven_mps[1:] == speeds_mps[1:])
    is_held = (driven_mps[:-1] == 0.0) & (driven_mps[1:] == 0.0)
    curvature_1pm = np.where(is_held, 0.0, raw.curvature_1pm)
    curvature_1pm, low_speed = _without_slow_turns(curvature_1pm, driven_mps, dt_ns, limits)
    findings = (*reversal, *low_speed)
    if not findings:
        return raw, ()
    slopes_mps2 = np.diff(driven_mps) / (dt_ns / NS_PER_S)
    accel_mps2 = np.where(is_same, raw.accel_mps2, slopes_mps2)
    return roll_out(driven_mps, accel_mps2, curvature_1pm, dt_ns), findings


def _stand(
    raw: Trajectory, speeds_mps: Channel, travel_m: float
) -> tuple[Trajectory, tuple[Finding, ...]]:
    if not (speeds_mps.any() or raw.curvature_1pm.any()):
        return raw, ()
    still = np.zeros_like(raw.speed_mps)
    text = (
        f'standing at {speeds_mps[0]:.2f} m/s and moving {travel_m:.2f} m in all: '
        f'made a clean stop'
    )
    stop = roll_out(np.zeros_like(speeds_mps), still, still, int(raw.time_from_start_ns[0]))
    return stop, (Finding(Reason.STANDSTILL, text),)


def _without_reverse(
    speeds_mps: Channel, limits: AdjustLimits
) -> tuple[Channel, tuple[Finding, ...]]:
    """Speeds (N + 1,) that never fall below 0."""
    is_reverse = speeds_mps < 0.0
    if limits.allow_reverse or not is_reverse.any():
        return speeds_mps, ()
    i_first, i_lowest = int(is_reverse.argmax()), int(speeds_mps.argmin())
    text = (
        f'{int(is_reverse.sum())} negative speeds, the first at {_instant(i_first)}, '
        f'down to {speeds_mps[i_lowest]:.2f} m/s at {_instant(i_lowest)}: '
    )
    driven_mps = np.maximum(speeds_mps, 0.0)
    is_beyond = speeds_mps < -limits.reverse_tolerance_mps
    if not is_beyond.any():
        return driven_mps, (Finding(Reason.REVERSAL, text + 'held at 0'),)
    driven_mps[int(is_beyond.argmax()) :] = 0.0
    return driven_mps, (Finding(Reason.REVERSAL, text + 'the plan ends in a stop'),)


def _without_slow_turns(
    curvature_1pm: Channel, speeds_mps: Channel, dt_ns: int, limits: AdjustLimits
) -> tuple[Channel, tuple[Finding, ...]]:
    """Curvature (N,) that is 0 wherever an end of the interval is slow."""
    is_fast = np.abs(speeds_mps) >= limits.low_speed_mps
    is_dropped = ~(is_fast[:-1] & is_fast[1:]) & (curvature_1pm != 0.0)
    if not is_dropped.any():
        return curvature_1pm, ()
    i_largest = int(np.argmax(np.where(is_dropped, np.abs(curvature_1pm), 0.0)))
    turn_rad = float((curvature_1pm * arc_lengths(speeds_mps, dt_ns))[is_dropped].sum())
    text = (
        f'{int(is_dropped.sum())} intervals below {limits.low_speed_mps} m/s: curvature of up to '
        f'{abs(curvature_1pm[i_largest]):.2f} 1/m (waypoint {i_largest}) and '
        f'{turn_rad:.2f} rad of heading dropped'
    )
    finding = Finding(Reason.LOW_SPEED_HEADING, text)
    return np.where(is_dropped, 0.0, curvature_1pm), (finding,)


def _instant(i_speed: int) -> str:
    return f'waypoint {i_speed - 1}' if i_speed else 't0'
