# SPDX-License-Identifier: Apache-2.0
import numpy as np
from numpy.typing import NDArray
import pytest

from alpamayo_node.plan.smoothing import FitConstants
from alpamayo_node.plan.smoothing import roughness
from alpamayo_node.plan.start_speed import estimate_start_speed

DT_NS = 100_000_000
TIME_S = np.arange(-15, 1) / 10.0
CRUISE_M = 10.0 * TIME_S


def straight(x_m: NDArray[np.float64]) -> float:
    return estimate_start_speed(np.stack([x_m, np.zeros(16)], 1), np.zeros(16), DT_NS)


def moved(i: int, by_m: float) -> NDArray[np.float64]:
    x_m = CRUISE_M.copy()
    x_m[i] += by_m
    return x_m


# Values of the published estimator, evaluated in float64; the truth is in the second comment.
@pytest.mark.parametrize(
    ('x_m', 'expected_mps'),
    [
        pytest.param(CRUISE_M, 9.999409, id='constant'),  # 10
        pytest.param(8 * TIME_S + TIME_S**2, 7.999524, id='accelerating'),  # 8
        pytest.param(5 * TIME_S - 3 * TIME_S**2, 4.999715, id='braking'),  # 5
        pytest.param(np.maximum(TIME_S + 0.7, 0) ** 2, 1.397893, id='standing-start'),  # 1.4
        # the step was integrated on a 1 ms grid, which puts it half a millisecond early
        pytest.param(5 * np.maximum(TIME_S + 0.5005, 0), 4.756486, id='speed-step'),  # 5
        pytest.param(-3 * np.minimum(TIME_S + 0.2, 0) ** 2, 0.038743, id='stopped'),  # 0
    ],
)
def test_start_speed_of_known_motions(x_m: NDArray[np.float64], expected_mps: float) -> None:
    assert straight(x_m) == pytest.approx(expected_mps, abs=2e-6)


@pytest.mark.parametrize(
    ('x_m', 'expected_mps'),
    [
        pytest.param(moved(12, 0.5), 11.29, id='outlier'),
        pytest.param(moved(15, 0.05), 10.71, id='last-step'),
        pytest.param(np.where(np.arange(16) < 4, CRUISE_M - 50, CRUISE_M), 10.60, id='jump'),
    ],
)
def test_start_speed_of_damaged_histories(x_m: NDArray[np.float64], expected_mps: float) -> None:
    assert straight(x_m) == pytest.approx(expected_mps, abs=0.005)


def test_start_speed_in_a_turn() -> None:
    # 0.3 rad/s at 10 m/s: the closed-form arc, ending in the origin
    yaw_rad = 0.3 * TIME_S
    xy_m = (10 / 0.3) * np.stack([np.sin(yaw_rad), 1 - np.cos(yaw_rad)], 1)
    assert estimate_start_speed(xy_m, yaw_rad, DT_NS) == pytest.approx(10.000159, abs=1e-6)


def test_start_speed_weights_of_the_last_positions() -> None:
    # the estimate is linear in the positions of a straight drive
    weights = np.array([straight(np.eye(16)[i]) for i in range(16)])
    np.testing.assert_allclose(weights[-4:], [2.583, -1.622, -15.925, 14.304], atol=6e-4)
    assert 0.01 * np.linalg.norm(weights) == pytest.approx(0.217, abs=5e-4)
    assert weights.sum() == pytest.approx(0.0, abs=1e-9)


def test_start_speed_is_negative_when_backing_up() -> None:
    assert straight(-CRUISE_M) == pytest.approx(-9.999409, abs=1e-6)


def test_start_speed_does_not_depend_on_the_frame() -> None:
    yaw_rad = 0.3 * TIME_S
    xy_m = (10 / 0.3) * np.stack([np.sin(yaw_rad), 1 - np.cos(yaw_rad)], 1)
    turn_rad = 2.5
    turned = np.array(
        [[np.cos(turn_rad), -np.sin(turn_rad)], [np.sin(turn_rad), np.cos(turn_rad)]]
    )
    elsewhere_m = xy_m @ turned.T + [30.0, -7.0]
    assert estimate_start_speed(elsewhere_m, yaw_rad + turn_rad, DT_NS) == pytest.approx(
        estimate_start_speed(xy_m, yaw_rad, DT_NS), abs=1e-9
    )


def test_start_speed_unwraps_the_heading() -> None:
    # westwards: the heading flickers between -pi and pi
    yaw_rad = np.where(np.arange(16) % 2, np.pi, -np.pi)
    xy_m = np.stack([-CRUISE_M, np.zeros(16)], 1)
    assert estimate_start_speed(xy_m, yaw_rad, DT_NS) == pytest.approx(9.999409, abs=1e-6)


def test_start_speed_equals_the_rows_written_out() -> None:
    # two rows per interval, third differences of weight 1 and a ridge, solved as one system
    rng = np.random.default_rng(3)
    yaw_rad = np.cumsum(rng.normal(0, 0.1, 16))
    xy_m = np.cumsum(rng.normal(1, 0.3, (16, 2)), axis=0)
    rows, targets = [], []
    for i in range(15):
        for k, function in enumerate((np.cos, np.sin)):
            row = np.zeros(16)
            row[i], row[i + 1] = function(yaw_rad[i]), function(yaw_rad[i + 1])
            rows.append(row)
            targets.append(2 * (xy_m[i + 1, k] - xy_m[i, k]) / 0.1)
    for i in range(13):
        row = np.zeros(16)
        row[i : i + 4] = [-1, 3, -3, 1]
        rows.append(row)
        targets.append(0.0)
    for i in range(16):
        rows.append(np.eye(16)[i] * 1e-2)  # ridge 1e-4
        targets.append(0.0)
    expected = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)[0][-1]
    assert estimate_start_speed(xy_m, yaw_rad, DT_NS) == pytest.approx(expected, rel=1e-9)


def test_start_speed_constants_matter() -> None:
    loose = FitConstants(speed_lambda=0.0)
    x_m = moved(12, 0.5)
    xy_m = np.stack([x_m, np.zeros(16)], 1)
    assert abs(estimate_start_speed(xy_m, np.zeros(16), DT_NS, loose) - straight(x_m)) > 0.1


@pytest.mark.parametrize(('n', 'order'), [(16, 3), (64, 2), (4, 3)])
def test_roughness_is_the_sum_of_squared_differences(n: int, order: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    expected = (np.diff(values, order) ** 2).sum()
    assert values @ roughness(n, order) @ values == pytest.approx(expected, rel=1e-12)


def test_roughness_is_shared_and_read_only() -> None:
    form = roughness(16, 3)
    assert form is roughness(16, 3)
    with pytest.raises(ValueError, match='read-only'):
        form[0, 0] = 1.0
