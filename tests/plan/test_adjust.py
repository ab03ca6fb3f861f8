# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from alpamayo_node.contracts import EgoStart
from alpamayo_node.contracts import Finding
from alpamayo_node.contracts import Trajectory
from alpamayo_node.errors import Reason
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.adjust import adjust
from alpamayo_node.plan.unicycle import integrate

DT_NS = 100_000_000
ONES, ZEROS = np.ones(64), np.zeros(64)
LIMITS = AdjustLimits()
NOTHING = AdjustLimits(low_speed_mps=0.0, allow_reverse=True, standstill_speed_mps=0.0)
STOP_ONLY = AdjustLimits(low_speed_mps=0.0, standstill_speed_mps=0.0)


def start_with(speed_mps: float) -> EgoStart:
    return EgoStart(
        t0_ns=0,
        frame_id='map',
        position_m=(0.0, 0.0, 0.0),
        orientation_xyzw=(0.0, 0.0, 0.0, 1.0),
        speed_mps=speed_mps,
        speed_from_positions_mps=speed_mps,
        speed_from_twist_mps=None,
    )


def adjusted(
    accel: NDArray[np.float64],
    curvature: NDArray[np.float64],
    v0_mps: float,
    limits: AdjustLimits = LIMITS,
) -> tuple[Trajectory, Trajectory, tuple[Finding, ...]]:
    """Raw trajectory, adjusted one, findings."""
    raw = integrate(accel, curvature, v0_mps, DT_NS)
    return raw, *adjust(raw, start_with(v0_mps), limits)


def reasons_of(findings: tuple[Finding, ...]) -> list[Reason]:
    return [finding.reason for finding in findings]


def test_adjust_ordinary_drive_is_handed_back_untouched() -> None:
    raw, got, findings = adjusted(0.5 * ONES, 0.02 * ONES, 10.0)
    assert got is raw
    assert findings == ()


def test_adjust_brake_to_a_stop_keeps_the_exact_ramp_and_then_stands() -> None:
    # -2 m/s² from 5 m/s: 6.25 m; raw speed is 0 at 2.5 s (waypoint 24) and negative after that
    accel = -2.0 * ONES
    raw, got, findings = adjusted(accel, ZEROS, 5.0)
    np.testing.assert_array_equal(got.speed_mps[:24], raw.speed_mps[:24])
    np.testing.assert_array_equal(got.x_m[:24], raw.x_m[:24])
    assert got.speed_mps[24] == pytest.approx(0.0, abs=1e-12)
    assert (got.speed_mps[25:] == 0.0).all()
    assert (got.x_m[25:] == got.x_m[25]).all()
    assert got.x_m[63] == pytest.approx(6.25, abs=1e-9)
    assert (got.accel_mps2[26:] == 0.0).all()
    assert reasons_of(findings) == [Reason.REVERSAL]
    assert 'ends in a stop' in findings[0].text
    assert 'the first at waypoint 25, down to -7.80 m/s at waypoint 63' in findings[0].text


def test_adjust_stop_between_waypoints_ends_with_speed_zero() -> None:
    # 5 m/s at -3 m/s²: 0.2 m/s at waypoint 15, -0.1 at 16; the last interval brakes with 2 m/s²
    _, got, _ = adjusted(-3.0 * ONES, ZEROS, 5.0)
    assert got.speed_mps[15] == pytest.approx(0.2)
    assert (got.speed_mps[16:] == 0.0).all()
    assert got.accel_mps2[16] == pytest.approx(-2.0)
    assert not got.accel_mps2[17:].any()


def test_adjust_stop_freezes_pose_and_heading_while_turning() -> None:
    _, got, findings = adjusted(-2.0 * ONES, 0.1 * ONES, 5.0)
    for name in ('x_m', 'y_m', 'heading_rad'):
        values = getattr(got, name)
        assert (values[26:] == values[25]).all()
    assert not got.curvature_1pm[26:].any()
    assert set(reasons_of(findings)) == {Reason.REVERSAL, Reason.LOW_SPEED_HEADING}


def test_adjust_stop_is_kept_when_the_sample_drives_on_later() -> None:
    # falls to -0.5 m/s, then speeds up: what follows a reversal is not trusted
    accel = np.concatenate([-1.0 * np.ones(15), 2.0 * np.ones(49)])
    raw, got, findings = adjusted(accel, ZEROS, 1.0)
    assert raw.speed_mps[63] > 5.0
    assert (got.speed_mps[10:] == 0.0).all()
    assert reasons_of(findings) == [Reason.REVERSAL]


def test_adjust_dip_within_the_tolerance_waits_and_goes_on() -> None:
    # standing start with noise: -0.09 m/s at most, then off with 2 m/s²
    accel = np.concatenate([-0.1 * np.ones(9), 2.0 * np.ones(55)])
    raw, got, findings = adjusted(accel, ZEROS, 0.0)
    assert (got.speed_mps[:9] == 0.0).all()
    np.testing.assert_array_equal(got.speed_mps[9:], raw.speed_mps[9:])
    assert got.speed_mps[63] == pytest.approx(10.91)
    assert reasons_of(findings) == [Reason.REVERSAL]
    assert 'held at 0' in findings[0].text


@pytest.mark.parametrize(('lowest_mps', 'is_end'), [(-0.099, False), (-0.101, True)])
def test_adjust_tolerance_decides_between_waiting_and_ending(
    lowest_mps: float, is_end: bool
) -> None:
    speeds = np.concatenate([[1.0, lowest_mps], np.linspace(0.0, 6.0, 62)])
    _, got, findings = adjusted(np.diff(speeds, prepend=2.0) / 0.1, ZEROS, 2.0)
    assert reasons_of(findings) == [Reason.REVERSAL]
    assert got.speed_mps[63] == (0.0 if is_end else pytest.approx(6.0))


def test_adjust_tolerance_zero_ends_at_the_first_negative_speed() -> None:
    accel = np.concatenate([-0.1 * np.ones(1), 2.0 * np.ones(63)])
    limits = AdjustLimits(reverse_tolerance_mps=0.0)
    _, got, findings = adjusted(accel, ZEROS, 0.0, limits)
    assert not got.speed_mps.any()
    assert reasons_of(findings) == [Reason.REVERSAL]


def test_adjust_slightly_negative_start_speed_does_not_forbid_to_start() -> None:
    _, got, findings = adjusted(2.0 * ONES, ZEROS, -0.05)
    assert got.speed_mps[0] == pytest.approx(0.15)
    assert got.speed_mps[63] == pytest.approx(12.75)
    assert reasons_of(findings) == [Reason.REVERSAL]
    assert 't0' in findings[0].text


def test_adjust_rolling_backwards_at_t0_stops_at_once() -> None:
    _, got, findings = adjusted(2.0 * ONES, ZEROS, -1.0)
    assert not got.speed_mps.any()
    assert not got.x_m.any()
    assert reasons_of(findings) == [Reason.REVERSAL]
    assert 'the first at t0' in findings[0].text


def test_adjust_allowed_reverse_is_left_alone() -> None:
    limits = AdjustLimits(allow_reverse=True)
    raw, got, findings = adjusted(-2.0 * ONES, ZEROS, 5.0, limits)
    assert got is raw
    assert findings == ()


def test_adjust_allowed_reverse_at_speed_keeps_its_curvature() -> None:
    raw, got, _ = adjusted(ZEROS, 0.1 * ONES, -2.0, AdjustLimits(allow_reverse=True))
    assert got is raw


def test_adjust_creep_drives_straight() -> None:
    # 0.5 m/s for 6.4 s with curvature: heading stays, distance stays
    raw, got, findings = adjusted(ZEROS, 0.2 * ONES, 0.5)
    assert raw.heading_rad[63] == pytest.approx(0.64)
    assert not got.heading_rad.any()
    assert not got.curvature_1pm.any()
    assert got.x_m[63] == pytest.approx(3.2)
    assert reasons_of(findings) == [Reason.LOW_SPEED_HEADING]
    assert '64 intervals' in findings[0].text
    assert '0.20 1/m' in findings[0].text
    assert '0.64 rad' in findings[0].text


def test_adjust_low_speed_starts_where_either_end_is_slow() -> None:
    # 0.5, 0.6, 0.7 ...: of the intervals, only the first has an end below 0.6
    _, got, _ = adjusted(ONES, 0.1 * ONES, 0.5, AdjustLimits(low_speed_mps=0.599))
    assert got.curvature_1pm[0] == 0.0
    assert (got.curvature_1pm[1:] == 0.1).all()


def test_adjust_stop_and_go_freezes_the_heading_only_while_slow() -> None:
    # 4 m/s, brake to 0 by 2 s, stand 2.4 s, speed up again; curvature explodes while standing
    accel = np.concatenate([-2.0 * np.ones(20), np.zeros(24), 2.0 * np.ones(20)])
    curvature = np.where(np.abs(np.arange(64) - 32) < 12, 50.0, 0.05)
    raw, got, findings = adjusted(accel, curvature, 4.0)
    slow = np.flatnonzero(np.abs(np.concatenate([[4.0], raw.speed_mps])) < 0.599)
    assert (np.diff(got.heading_rad[slow[0] - 1 : slow[-1]]) == 0.0).all()
    assert got.curvature_1pm[0] == 0.05
    assert got.curvature_1pm[63] == 0.05
    assert got.heading_rad[63] > got.heading_rad[slow[0]] > 0.1
    assert np.abs(got.curvature_1pm).max() == 0.05
    assert Reason.LOW_SPEED_HEADING in reasons_of(findings)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), scale=st.sampled_from([0.01, 1.0, 1e3, 1e9]))
def test_adjust_standing_with_random_curvature_never_turns(seed: int, scale: float) -> None:
    curvature = np.random.default_rng(seed).normal(0, scale, 64)
    _, got, _ = adjusted(ZEROS, curvature, 0.0)
    for name in ('x_m', 'y_m', 'heading_rad', 'speed_mps', 'curvature_1pm'):
        assert not getattr(got, name).any()


def test_adjust_low_speed_rule_can_be_switched_off() -> None:
    raw, got, findings = adjusted(ZEROS, 0.2 * ONES, 0.5, AdjustLimits(low_speed_mps=0.0))
    assert got is raw
    assert findings == ()


def test_adjust_stop_drops_the_curvature_of_the_hold_even_without_the_low_speed_rule() -> None:
    _, got, _ = adjusted(-2.0 * ONES, 5.0 * ONES, 5.0, STOP_ONLY)
    assert not got.curvature_1pm[26:].any()
    assert (got.curvature_1pm[:24] == 5.0).all()


@pytest.mark.parametrize('v0_mps', [0.0, 0.05, -0.05])
def test_adjust_standstill_becomes_a_clean_stop(v0_mps: float) -> None:
    accel = np.random.default_rng(2).normal(0, 0.02, 64)
    raw, got, findings = adjusted(accel, 3.0 * ONES, v0_mps)
    assert raw.x_m.any()
    for name in ('x_m', 'y_m', 'heading_rad', 'speed_mps', 'accel_mps2', 'curvature_1pm'):
        assert not getattr(got, name).any()
    assert got.time_from_start_ns.tolist() == raw.time_from_start_ns.tolist()
    assert reasons_of(findings) == [Reason.STANDSTILL]


def test_adjust_standstill_with_nothing_to_change_is_no_finding() -> None:
    raw, got, findings = adjusted(ZEROS, ZEROS, 0.0)
    assert got is raw
    assert findings == ()


@pytest.mark.parametrize(
    ('v0_mps', 'accel_mps2', 'is_clean_stop'),
    [
        (0.0, 0.024, True),  # 0.49 m in 6.4 s
        (0.0, 0.025, False),  # 0.51 m
        (0.099, -0.01, True),  # 0.43 m
        (0.101, -0.01, False),  # moving at t0
    ],
)
def test_adjust_standstill_limits(v0_mps: float, accel_mps2: float, is_clean_stop: bool) -> None:
    _, got, findings = adjusted(accel_mps2 * ONES, ZEROS, v0_mps)
    assert (Reason.STANDSTILL in reasons_of(findings)) is is_clean_stop
    assert got.x_m.any() is np.bool_(not is_clean_stop)


def test_adjust_rolling_backwards_for_a_moment_is_no_standstill() -> None:
    # -0.5 m/s, stopped within one interval: hardly any travel, but not standing either
    accel = ZEROS.copy()
    accel[0] = 5.0
    _, _, findings = adjusted(accel, ZEROS, -0.5)
    assert reasons_of(findings) == [Reason.REVERSAL]


def test_adjust_standing_vehicle_that_swings_to_and_fro_is_no_standstill() -> None:
    # 0.4 m forward and 0.4 m back: it travels 0.8 m and ends where it began
    accel = np.concatenate(
        [0.4 * np.ones(10), -0.4 * np.ones(20), 0.4 * np.ones(10), np.zeros(24)]
    )
    raw, _, findings = adjusted(accel, ZEROS, 0.0)
    assert raw.x_m[63] == pytest.approx(0.0, abs=1e-9)
    assert reasons_of(findings) == [Reason.REVERSAL]


def test_adjust_real_start_from_standstill_moves_off() -> None:
    _, got, findings = adjusted(ONES, ZEROS, 0.0)
    assert got.speed_mps[0] == pytest.approx(0.1)
    assert findings == ()


@pytest.mark.parametrize('limits', [LIMITS, NOTHING, STOP_ONLY])
@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('i', [0, 31, 63])
@pytest.mark.parametrize('v0_mps', [0.0, 0.3, 5.0])
def test_adjust_hands_back_what_is_not_finite(
    v0_mps: float, i: int, value: float, limits: AdjustLimits
) -> None:
    # even where the curvature would have been dropped: a NaN is never repaired away
    for channel in (0, 1):
        action = [ZEROS.copy(), ZEROS.copy()]
        action[channel][i] = value
        raw, got, findings = adjusted(*action, v0_mps, limits)
        assert got is raw
        assert findings == ()


motions = st.tuples(
    st.integers(0, 2**32), st.floats(-2, 15), st.floats(0, 8), st.floats(-3, 3), st.floats(0, 1)
)


@settings(max_examples=200, deadline=None)
@given(motions)
def test_adjust_result_is_always_drivable(motion: tuple[int, float, float, float, float]) -> None:
    seed, v0_mps, accel_scale, accel_mean, curvature_scale = motion
    rng = np.random.default_rng(seed)
    accel = rng.normal(accel_mean, accel_scale, 64)
    raw, got, findings = adjusted(accel, rng.normal(0, curvature_scale, 64), v0_mps)
    assert len(got.x_m) == 64
    assert got.time_from_start_ns.tolist() == [(i + 1) * DT_NS for i in range(64)]
    assert (got.speed_mps >= 0.0).all()
    assert (got.speed_mps <= np.maximum(raw.speed_mps, 0.0)).all()
    assert (np.abs(got.accel_mps2) <= np.abs(raw.accel_mps2) + 1e-9).all()
    assert (np.abs(got.curvature_1pm) <= np.abs(raw.curvature_1pm)).all()
    assert bool(findings) is (got is not raw)
    # the record agrees with the motion
    speeds = np.concatenate([[max(v0_mps, 0.0)], got.speed_mps])
    if v0_mps >= -0.1 and Reason.STANDSTILL not in reasons_of(findings):
        np.testing.assert_allclose(np.diff(speeds) / 0.1, got.accel_mps2, atol=1e-9)
    slow = np.minimum(speeds[:-1], speeds[1:]) < 0.6
    turns = np.diff(got.heading_rad, prepend=0.0)
    assert not turns[slow].any()
    steps_m = np.hypot(np.diff(got.x_m, prepend=0.0), np.diff(got.y_m, prepend=0.0))
    assert (steps_m <= 0.1 * np.maximum(speeds[:-1], speeds[1:]) + 1e-9).all()


@settings(max_examples=50, deadline=None)
@given(motions)
def test_adjust_twice_changes_nothing_more(motion: tuple[int, float, float, float, float]) -> None:
    seed, v0_mps, accel_scale, accel_mean, curvature_scale = motion
    rng = np.random.default_rng(seed)
    accel = rng.normal(accel_mean, accel_scale, 64)
    _, once, _ = adjusted(accel, rng.normal(0, curvature_scale, 64), abs(v0_mps))
    twice, findings = adjust(once, start_with(abs(v0_mps)), LIMITS)
    assert twice is once or reasons_of(findings) == [Reason.STANDSTILL]
