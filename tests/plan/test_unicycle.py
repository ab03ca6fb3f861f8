# SPDX-License-Identifier: Apache-2.0
from dataclasses import fields
from dataclasses import replace

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from alpamayo_node.contracts import Trajectory
from alpamayo_node.plan.smoothing import FitConstants
from alpamayo_node.plan.unicycle import arc_lengths
from alpamayo_node.plan.unicycle import denormalise
from alpamayo_node.plan.unicycle import fit_actions
from alpamayo_node.plan.unicycle import integrate
from alpamayo_node.plan.unicycle import normalise
from tests.fakes.expert import SPACE

DT_NS = 100_000_000
# The constants as the released model holds them: rounded to bfloat16.
ROUNDED = replace(
    SPACE,
    accel_mean=0.029052734375,
    accel_std=0.6796875,
    curvature_mean=0.0002689361572265625,
    curvature_std=0.026123046875,
)
ONES, ZEROS = np.ones(64), np.zeros(64)
RISING, FALLING = np.linspace(-1, 1, 64), np.linspace(1, -1, 64)
CASES = {
    'mean': (ZEROS, ZEROS, 10.0),
    'accelerating': (ONES, ZEROS, 10.0),
    'turning': (ZEROS, ONES, 10.0),
    'both': (RISING, FALLING, 8.0),
    'reversing': (-4 * ONES, ZEROS, 5.0),
}
type Channel = NDArray[np.float64]


def rolled(accel: Channel, curvature: Channel, v0_mps: float, space: object = SPACE) -> Trajectory:
    return integrate(*denormalise(np.stack([accel, curvature], 1), space), v0_mps, DT_NS)


# Evaluated in float64 from the published formulas with exact constants: x, y, heading, speed of
# waypoints 0, 31 and 63.
GOLDEN = {
    'mean': [
        (1.0001451, 0.00013467, 0.00026926, 10.0029027),
        (32.1482164, 0.1391221, 0.0086549, 10.0928862),
        (64.5912159, 0.5616334, 0.0173899, 10.1857725),
    ],
    'accelerating': [
        (1.0035503, 0.00013605, 0.00027017, 10.0710070),
        (35.6350095, 0.1709540, 0.0095937, 12.2722228),
        (78.5363720, 0.8303898, 0.0211449, 14.5444456),
    ],
    'turning': [
        (0.9999706, 0.0132130, 0.0264213, 10.0029027),
        (28.4192063, 12.8498957, 0.8492860, 10.0928862),
        (37.5037836, 42.9695076, 1.7064243, 10.1857725),
    ],
    'both': [
        (0.7966520, 0.0083499, 0.0210479, 7.9347984),
        (22.7466272, 4.9448773, 0.3240998, 6.9859216),
        (45.7646677, 10.0534478, 0.0074103, 8.1857725),
    ],
    'reversing': [
        (0.4865243, 0.0000310, 0.0001310, 4.7304856),
        (2.2008639, 0.0006480, 0.0005925, -3.6244600),
        (-23.1963929, 0.0724718, -0.0062449, -12.2489200),
    ],
}


@pytest.mark.parametrize('case', CASES)
def test_integrate_golden_waypoints(case: str) -> None:
    trajectory = rolled(*CASES[case])
    for i, expected in zip((0, 31, 63), GOLDEN[case], strict=True):
        got = [
            trajectory.x_m[i],
            trajectory.y_m[i],
            trajectory.heading_rad[i],
            trajectory.speed_mps[i],
        ]
        assert got == pytest.approx(expected, abs=2e-7)


@pytest.mark.parametrize(
    ('case', 'x_m', 'y_m'),
    [
        ('mean', 64.5917507, 0.5610571),
        ('accelerating', 78.5091645, 0.8289492),
        ('turning', 37.5483664, 42.9497001),
        ('both', 45.7764144, 10.0476574),
        ('reversing', -23.0848515, 0.0717019),
    ],
)
def test_integrate_golden_end_points_of_rounded_constants(
    case: str, x_m: float, y_m: float
) -> None:
    trajectory = rolled(*CASES[case], space=ROUNDED)
    assert [trajectory.x_m[63], trajectory.y_m[63]] == pytest.approx([x_m, y_m], abs=3e-7)


def test_integrate_times_are_exact_integers() -> None:
    trajectory = rolled(ZEROS, ZEROS, 10.0)
    assert trajectory.time_from_start_ns.dtype == np.int64
    assert trajectory.time_from_start_ns.tolist() == [(i + 1) * DT_NS for i in range(64)]


def test_integrate_at_constant_speed_straight_ahead_is_spaced_by_v_dt() -> None:
    trajectory = integrate(ZEROS, ZEROS, 7.0, DT_NS)
    np.testing.assert_allclose(trajectory.x_m, 0.7 * np.arange(1, 65), rtol=1e-14)
    assert not trajectory.y_m.any()
    assert (trajectory.speed_mps == 7.0).all()


def test_integrate_constant_acceleration_is_the_parabola() -> None:
    # the trapezoid is exact for linear speed
    time_s = np.arange(1, 65) / 10
    trajectory = integrate(2.0 * ONES, ZEROS, 3.0, DT_NS)
    np.testing.assert_allclose(trajectory.x_m, 3.0 * time_s + time_s**2, rtol=1e-13)


def test_integrate_constant_curvature_stays_near_the_circle_and_turns_left() -> None:
    # radius 20 m at 10 m/s: heading is exact; the trapezoid cuts each chord by (s kappa)^2 / 12
    trajectory = integrate(ZEROS, 0.05 * ONES, 10.0, DT_NS)
    time_s = np.arange(1, 65) / 10
    np.testing.assert_allclose(trajectory.heading_rad, 0.5 * time_s, rtol=1e-13)
    np.testing.assert_allclose(trajectory.x_m, 20 * np.sin(0.5 * time_s), atol=0.01)
    np.testing.assert_allclose(trajectory.y_m, 20 * (1 - np.cos(0.5 * time_s)), atol=0.01)
    assert (trajectory.y_m > 0).all()
    np.testing.assert_allclose(trajectory.heading_rate_rps, 0.5, rtol=1e-13)


def test_integrate_standing_with_any_curvature_stays() -> None:
    trajectory = integrate(ZEROS, 100.0 * RISING, 0.0, DT_NS)
    for name in ('x_m', 'y_m', 'heading_rad', 'speed_mps'):
        assert not getattr(trajectory, name).any()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), v0_mps=st.floats(-5, 40))
def test_integrate_equals_the_recursion_step_by_step(seed: int, v0_mps: float) -> None:
    rng = np.random.default_rng(seed)
    accel, curvature = rng.normal(0, 3, 64), rng.normal(0, 0.1, 64)
    x = y = heading = 0.0
    v = v0_mps
    trajectory = integrate(accel, curvature, v0_mps, DT_NS)
    for i in range(64):
        v_next = v + 0.1 * accel[i]
        heading_next = heading + curvature[i] * (v * 0.1 + accel[i] * 0.005)
        x += 0.05 * (v * np.cos(heading) + v_next * np.cos(heading_next))
        y += 0.05 * (v * np.sin(heading) + v_next * np.sin(heading_next))
        v, heading = v_next, heading_next
        got = [getattr(trajectory, name)[i] for name in ('x_m', 'y_m', 'heading_rad', 'speed_mps')]
        assert got == pytest.approx([x, y, heading, v], abs=1e-10)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('channel', [0, 1])
def test_integrate_non_finite_action_is_carried_through_without_a_warning(
    value: float, channel: int
) -> None:
    action = np.zeros((64, 2), np.float32)
    action[10, channel] = value
    trajectory = rolled(*action.T, 10.0)
    assert np.isfinite(trajectory.x_m[:10]).all()
    assert not np.isfinite(trajectory.x_m[10:]).any()


def test_integrate_leaves_its_input_alone() -> None:
    accel, curvature = RISING.copy(), FALLING.copy()
    integrate(accel, curvature, 5.0, DT_NS)
    assert (accel == RISING).all()
    assert (curvature == FALLING).all()


def test_arc_lengths_are_signed() -> None:
    assert arc_lengths(np.array([1.0, 3.0, -3.0, -1.0]), DT_NS) == pytest.approx([0.2, 0, -0.2])


def test_denormalise_in_float64() -> None:
    accel, curvature = denormalise(np.array([[1, -2]], np.float32), SPACE)
    assert accel.dtype == curvature.dtype == np.float64
    assert accel[0] == 0.6810426736454882 + 0.02902694707164455
    assert curvature[0] == -2 * 0.026148280660833106 + 0.0002692167976330542


def test_normalise_undoes_denormalise() -> None:
    action = np.random.default_rng(0).normal(size=(64, 2))
    np.testing.assert_allclose(normalise(*denormalise(action, SPACE), SPACE), action, atol=1e-13)


def round_trip(action: Channel, v0_mps: float) -> tuple[float, float]:
    """Largest error of the normalised action and of a position in m."""
    there = integrate(*denormalise(action, SPACE), v0_mps, DT_NS)
    fitted = fit_actions(there.x_m, there.y_m, there.heading_rad, v0_mps, DT_NS)
    again = integrate(*fitted, v0_mps, DT_NS)
    error_m = np.hypot(again.x_m - there.x_m, again.y_m - there.y_m).max()
    return float(np.abs(normalise(*fitted, SPACE) - action).max()), float(error_m)


@pytest.mark.parametrize('v0_mps', [2.0, 10.0, 20.0])
def test_fit_actions_smooth_round_trip_is_close(v0_mps: float) -> None:
    phase = np.pi * np.arange(64) / 64
    for action in (
        np.stack([0.5 * np.sin(phase), 0.5 * np.cos(phase)], 1),
        np.stack([ZEROS, ZEROS], 1),
    ):
        error, error_m = round_trip(action, v0_mps)
        assert error < 0.01
        assert error_m < 0.01


@pytest.mark.parametrize(('v0_mps', 'limit_m'), [(2.0, 0.01), (10.0, 0.05), (20.0, 0.15)])
def test_fit_actions_rough_round_trip_smooths_the_action_and_keeps_the_path(
    v0_mps: float, limit_m: float
) -> None:
    error, error_m = round_trip(np.random.default_rng(0).normal(size=(64, 2)), v0_mps)
    assert error > 1.0
    assert error_m < limit_m


def test_fit_actions_does_not_mind_wrapped_headings() -> None:
    there = rolled(ZEROS, 6 * ONES, 10.0)
    assert there.heading_rad[-1] > 2 * np.pi
    wrapped_rad = np.arctan2(np.sin(there.heading_rad), np.cos(there.heading_rad))
    plain = fit_actions(there.x_m, there.y_m, there.heading_rad, 10.0, DT_NS)
    np.testing.assert_allclose(
        fit_actions(there.x_m, there.y_m, wrapped_rad, 10.0, DT_NS), plain, atol=1e-9
    )


def test_fit_actions_of_a_standing_vehicle_is_zero() -> None:
    accel, curvature = fit_actions(ZEROS, ZEROS, ZEROS, 0.0, DT_NS)
    np.testing.assert_allclose(accel, 0.0, atol=1e-12)
    np.testing.assert_allclose(curvature, 0.0, atol=1e-12)


def test_fit_actions_equals_the_minimisation_written_out() -> None:
    # every stage as one stacked least-squares problem
    rng = np.random.default_rng(5)
    there = rolled(rng.normal(size=64), rng.normal(size=64), 8.0)
    third, second = np.diff(np.eye(65), 3, axis=0), np.diff(np.eye(64), 2, axis=0)

    heading_rad = stacked(there.heading_rad, np.eye(64), third[:, 1:], 1e-8)
    heading_rad = np.concatenate([[0.0], heading_rad])
    rows, targets = [], []
    steps_m = np.diff(np.stack([there.x_m, there.y_m]), prepend=0.0)
    for i in range(64):
        for k, function in enumerate((np.cos, np.sin)):
            row = np.zeros(65)
            row[i : i + 2] = function(heading_rad[i : i + 2])
            rows.append(row)
            targets.append(20 * steps_m[k, i])
    rows, targets = np.vstack([rows, third]), np.concatenate([targets, np.zeros(62)])
    rest = targets - 8.0 * rows[:, 0]
    speed_mps = stacked(rest, rows[:, 1:], np.zeros((0, 64)), 1e-4)
    speed_mps = np.concatenate([[8.0], speed_mps])
    accel = stacked(np.diff(speed_mps) / 0.1, np.eye(64), second, 1e-4)
    arcs_m = 0.1 * speed_mps[:-1] + 0.005 * accel
    curvature = stacked(np.diff(heading_rad), np.diag(arcs_m), second, 1e-4)

    got = fit_actions(there.x_m, there.y_m, there.heading_rad, 8.0, DT_NS)
    np.testing.assert_allclose(got, [accel, curvature], atol=1e-9)


def stacked(targets: Channel, rows: Channel, smoothing: Channel, ridge: float) -> Channel:
    n = rows.shape[1]
    matrix = np.vstack([rows, smoothing, np.sqrt(ridge) * np.eye(n)])
    padding = np.zeros(len(matrix) - len(targets))
    return np.linalg.lstsq(matrix, np.concatenate([targets, padding]), rcond=None)[0]


@pytest.mark.parametrize('name', [item.name for item in fields(FitConstants)])
def test_fit_actions_every_constant_matters(name: str) -> None:
    rng = np.random.default_rng(1)
    there = rolled(rng.normal(size=64), rng.normal(size=64), 8.0)
    waypoints = (there.x_m, there.y_m, there.heading_rad, 8.0, DT_NS)
    constants = FitConstants()
    changed = replace(constants, **{name: 3 * getattr(constants, name)})
    assert not np.allclose(
        fit_actions(*waypoints, changed), fit_actions(*waypoints), rtol=0, atol=1e-12
    )


def test_fit_constants_are_those_of_the_labels() -> None:
    assert FitConstants() == FitConstants(
        heading_lambda=1e-6,
        heading_ridge=1e-8,
        speed_lambda=1e-6,
        speed_ridge=1e-4,
        accel_lambda=1e-4,
        accel_ridge=1e-4,
        curvature_lambda=1e-4,
        curvature_ridge=1e-4,
    )
