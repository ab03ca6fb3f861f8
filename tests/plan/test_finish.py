# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest

from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Reason
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.finish import finish
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.unicycle import denormalise
from alpamayo_node.plan.unicycle import integrate
from tests.fakes.expert import SPACE
from tests.fakes.expert import make_request


def action_of(accel: float, curvature: float) -> np.ndarray:
    return np.tile(np.array([accel, curvature], np.float32), (64, 1))


def finished(action: np.ndarray, speed_mps: float, gate_limits: GateLimits | None = None) -> tuple:
    start = make_request(speed_mps).start
    return finish(action, start, SPACE, AdjustLimits(), gate_limits or GateLimits())


def test_finish_ordinary_action_is_the_plain_roll_out() -> None:
    action = action_of(1.0, 0.5)
    trajectory, reasons, adjustments = finished(action, 10.0)
    expected = integrate(*denormalise(action, SPACE), 10.0, SPACE.dt_ns)
    np.testing.assert_array_equal(trajectory.x_m, expected.x_m)
    assert (reasons, adjustments) == ((), ())


def test_finish_stop_with_a_little_drift_is_valid_and_flagged() -> None:
    action = action_of(-2.98, 0.0)  # -2 m/s²
    action[25:, 0] = -0.08  # -0.025 m/s² behind the stop
    trajectory, reasons, adjustments = finished(action, 5.0)
    assert reasons == ()
    assert {finding.reason for finding in adjustments} == {
        Reason.REVERSAL,
        Reason.LOW_SPEED_HEADING,
    }
    assert (trajectory.speed_mps >= 0.0).all()


def test_finish_standing_with_meaningless_curvature_is_a_valid_clean_stop() -> None:
    # 1 1/m, but the vehicle moves by millimetres
    trajectory, reasons, adjustments = finished(action_of(-0.0426, 40.0), 0.0)
    assert reasons == ()
    assert [finding.reason for finding in adjustments] == [Reason.STANDSTILL]
    assert not trajectory.curvature_1pm.any()


def test_finish_reversing_action_is_flagged_and_refused() -> None:
    trajectory, reasons, adjustments = finished(action_of(-4.0, 0.0), 5.0)
    assert [finding.reason for finding in reasons] == [Reason.REVERSAL]
    assert Reason.REVERSAL in {finding.reason for finding in adjustments}
    assert len(trajectory.x_m) == 64


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_finish_non_finite_action_is_refused_for_each_waypoint(value: float) -> None:
    for i in range(64):
        for channel in (0, 1):
            action = action_of(0.0, 0.0)
            action[i, channel] = value
            trajectory, reasons, adjustments = finished(action, 10.0)
            assert [finding.reason for finding in reasons] == [Reason.NON_FINITE]
            assert adjustments == ()
            assert len(trajectory.x_m) == 64


@pytest.mark.parametrize('value', [3.4e38, -3.4e38, 1e20])
def test_finish_huge_action_is_refused_without_a_warning(value: float) -> None:
    _, reasons, _ = finished(action_of(value, value), 10.0)
    assert Reason.ACCELERATION in {finding.reason for finding in reasons}


def test_finish_limits_reach_the_gate() -> None:
    _, reasons, _ = finished(action_of(1.0, 0.0), 10.0, GateLimits(max_accel_mps2=0.5))
    assert [finding.reason for finding in reasons] == [Reason.ACCELERATION]


def test_finish_uses_the_interval_of_the_action_space() -> None:
    space = replace(SPACE, dt_ns=50_000_000)
    start = make_request(10.0).start
    trajectory, _, _ = finish(action_of(0.0, 0.0), start, space, AdjustLimits(), GateLimits())
    assert trajectory.time_from_start_ns[63] == 3_200_000_000
    assert trajectory.x_m[63] == pytest.approx(32.0, abs=0.3)


@pytest.mark.parametrize('shape', [(63, 2), (64, 3), (1, 64, 2), (64,)])
def test_finish_action_of_another_shape_is_a_backend_failure(shape: tuple[int, ...]) -> None:
    with pytest.raises(BackendError, match='shape'):
        finished(np.zeros(shape, np.float32), 10.0)
