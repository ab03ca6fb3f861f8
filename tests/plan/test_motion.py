# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from alpamayo_node.errors import ConfigError
from alpamayo_node.plan.history import HistoryLimits
from alpamayo_node.plan.history import ego_start
from alpamayo_node.plan.motion import Motion
from alpamayo_node.plan.motion import MotionKind

S = 1_000_000_000


@pytest.mark.parametrize('kind', list(MotionKind))
@pytest.mark.parametrize('time_s', [-3.0, 0.0, 1.7, 8.0, 21.0])
def test_motion_speed_and_heading_are_the_derivatives_of_its_position(
    kind: MotionKind, time_s: float
) -> None:
    motion, step_s = Motion(kind, 9.0, 40.0), 1e-5
    x0, y0, _, _ = motion.at(time_s - step_s)
    x1, y1, _, _ = motion.at(time_s + step_s)
    _, _, heading_rad, speed_mps = motion.at(time_s)
    velocity = ((x1 - x0) / (2 * step_s), (y1 - y0) / (2 * step_s))
    assert velocity[0] == pytest.approx(speed_mps * math.cos(heading_rad), abs=1e-4)
    assert velocity[1] == pytest.approx(speed_mps * math.sin(heading_rad), abs=1e-4)


@pytest.mark.parametrize('kind', list(MotionKind))
def test_motion_history_is_accepted_and_gives_its_speed(kind: MotionKind) -> None:
    motion = Motion(kind, 9.0, 40.0)
    t0_ns = 100 * S
    start = ego_start(motion.history(t0_ns, 93 * S, 20.0), t0_ns, 'map', HistoryLimits())
    assert start.speed_mps == pytest.approx(motion.at(7.0)[3], abs=0.05)
    assert start.position_m[:2] == pytest.approx(motion.at(7.0)[:2], abs=1e-9)


@pytest.mark.parametrize(('speed_mps', 'radius_m'), [(-1.0, 9.0), (99.0, 9.0), (5.0, 0.0)])
def test_motion_impossible_values_are_refused(speed_mps: float, radius_m: float) -> None:
    with pytest.raises(ConfigError):
        Motion(MotionKind.CIRCLE, speed_mps, radius_m)
