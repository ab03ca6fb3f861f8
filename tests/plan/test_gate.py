# SPDX-License-Identifier: Apache-2.0
from dataclasses import fields
from dataclasses import replace
import math

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
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.gate import judge
from alpamayo_node.plan.unicycle import integrate

DT_NS = 100_000_000
ONES, ZEROS = np.ones(64), np.zeros(64)
LIMITS = GateLimits()
CHANNELS = ['x_m', 'y_m', 'heading_rad', 'speed_mps', 'accel_mps2', 'curvature_1pm']


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


GOOD = integrate(0.2 * ONES, 0.01 * ONES, 10.0, DT_NS)
START = start_with(10.0)


def changed(trajectory: Trajectory, channel: str, i: int, value: float) -> Trajectory:
    values = getattr(trajectory, channel).copy()
    values[i] = value
    return replace(trajectory, **{channel: values})


def finding_of(findings: tuple[Finding, ...], reason: Reason) -> Finding:
    (finding,) = findings
    assert finding.reason is reason
    return finding


def judged(
    accel: NDArray[np.float64], curvature: NDArray[np.float64], v0_mps: float
) -> tuple[tuple[Finding, ...], Trajectory]:
    """Reasons against an action that went through the adjustments, and the adjusted result."""
    raw = integrate(accel, curvature, v0_mps, DT_NS)
    result, _ = adjust(raw, start_with(v0_mps), AdjustLimits())
    return judge(raw, result, start_with(v0_mps), LIMITS), result


def test_judge_ordinary_plan_has_no_findings() -> None:
    assert judge(GOOD, GOOD, START, LIMITS) == ()


# ---- non-finite


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('channel', CHANNELS)
@pytest.mark.parametrize('is_raw', [True, False])
def test_judge_non_finite_number_anywhere_is_the_only_finding(
    channel: str, value: float, is_raw: bool
) -> None:
    for i in range(64):
        bad = changed(GOOD, channel, i, value)
        pair = (bad, GOOD) if is_raw else (GOOD, bad)
        finding = finding_of(judge(*pair, START, LIMITS), Reason.NON_FINITE)
        assert f'{channel} is {value} at waypoint {i} ' in finding.text


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_judge_non_finite_start_speed_is_found(value: float) -> None:
    finding = finding_of(judge(GOOD, GOOD, start_with(value), LIMITS), Reason.NON_FINITE)
    assert str(value) in finding.text


# ---- one violation, one reason


@pytest.mark.parametrize('i', [0, 1, 31, 63])
@pytest.mark.parametrize(
    ('channel', 'value', 'reason', 'text'),
    [
        ('accel_mps2', 9.9, Reason.ACCELERATION, '9.900 m/s²'),
        ('accel_mps2', -9.9, Reason.ACCELERATION, '-9.900 m/s²'),
        ('x_m', -2.1, Reason.REVERSAL, '2.10 m behind'),
    ],
)
def test_judge_violation_of_the_raw_roll_out_alone_is_found(
    channel: str, value: float, reason: Reason, text: str, i: int
) -> None:
    raw = changed(GOOD, channel, i, value)
    found = [
        finding
        for finding in judge(raw, GOOD, START, LIMITS)
        # a first waypoint behind the start is a start error as well
        if not (finding.reason is Reason.START_ERROR and channel == 'x_m' and i == 0)
    ]
    finding = finding_of(tuple(found), reason)
    assert text in finding.text
    assert f'waypoint {i}' in finding.text


@pytest.mark.parametrize('i', [0, 1, 31, 63])
@pytest.mark.parametrize('sign', [1.0, -1.0])
def test_judge_curvature_too_large_is_found(i: int, sign: float) -> None:
    # slow enough that v² k stays below the lateral limit
    slow = integrate(ZEROS, ZEROS, 2.0, DT_NS)
    bent = changed(slow, 'curvature_1pm', i, sign * 0.34)
    finding = finding_of(judge(bent, bent, start_with(2.0), LIMITS), Reason.CURVATURE)
    assert f'{sign * 0.34:.3f} 1/m at waypoint {i}; at most 0.33 1/m' in finding.text


@pytest.mark.parametrize('i', [0, 31, 63])
@pytest.mark.parametrize('sign', [1.0, -1.0])
def test_judge_lateral_acceleration_too_large_is_found(i: int, sign: float) -> None:
    # 20 m/s on 0.025 1/m: 10 m/s²
    fast = integrate(ZEROS, ZEROS, 20.0, DT_NS)
    bent = changed(fast, 'curvature_1pm', i, sign * 0.025)
    finding = finding_of(judge(fast, bent, start_with(20.0), LIMITS), Reason.LATERAL_ACCELERATION)
    assert f'{sign * 10:.3f} m/s² at waypoint {i}' in finding.text


@pytest.mark.parametrize(('dx_m', 'dy_m'), [(2.1, 0), (-2.1, 0), (0, 2.1), (0, -2.1), (1.6, 1.6)])
@pytest.mark.parametrize('is_raw', [True, False])
def test_judge_start_error_in_any_direction_is_found(
    dx_m: float, dy_m: float, is_raw: bool
) -> None:
    straight = integrate(ZEROS, ZEROS, 10.0, DT_NS)
    moved = changed(straight, 'x_m', 0, 1.0 + dx_m)
    moved = changed(moved, 'y_m', 0, dy_m)
    pair = (moved, straight) if is_raw else (straight, moved)
    finding = finding_of(judge(*pair, START, LIMITS), Reason.START_ERROR)
    assert f'{math.hypot(dx_m, dy_m):.2f} m' in finding.text


def test_judge_adjusted_waypoint_far_behind_the_start_is_a_reversal() -> None:
    behind = changed(GOOD, 'x_m', 40, -2.1)
    assert 'waypoint 40' in finding_of(judge(GOOD, behind, START, LIMITS), Reason.REVERSAL).text


def test_judge_lateral_acceleration_is_of_the_speed_that_would_be_driven() -> None:
    # 40 m/s on 0.01 1/m would be 16 m/s²
    assert judge(changed(GOOD, 'speed_mps', 20, 40.0), GOOD, START, LIMITS) == ()


def test_judge_heading_that_adjusting_dropped_is_found() -> None:
    # 0.5 m/s with 0.2 1/m: 0.64 rad of heading are frozen away
    raw = integrate(ZEROS, 0.2 * ONES, 0.5, DT_NS)
    frozen, _ = adjust(raw, start_with(0.5), AdjustLimits())
    finding = finding_of(judge(raw, frozen, start_with(0.5), LIMITS), Reason.LOW_SPEED_HEADING)
    assert '0.640 rad at waypoint 63; at most 0.35 rad' in finding.text


def test_judge_reversing_speed_is_found_in_the_raw_roll_out_alone() -> None:
    raw = changed(GOOD, 'speed_mps', 40, -1.1)
    finding = finding_of(judge(raw, GOOD, START, LIMITS), Reason.REVERSAL)
    assert '-1.10 m/s at waypoint 40' in finding.text
    assert judge(GOOD, changed(GOOD, 'speed_mps', 40, -1.1), START, LIMITS) == ()


def test_judge_rolling_backwards_at_t0_is_a_reversal() -> None:
    raw = integrate(5.0 * ONES, ZEROS, -1.1, DT_NS)
    finding = finding_of(judge(raw, raw, start_with(-1.1), LIMITS), Reason.REVERSAL)
    assert 'at t0' in finding.text


def test_judge_slow_but_long_reversing_is_found() -> None:
    # -0.8 m/s for 3 s: 2.36 m backwards, though never behind the start
    speeds = np.concatenate([np.linspace(10, 0, 21)[1:], np.zeros(14), -0.8 * np.ones(30)])
    raw = integrate(np.diff(speeds, prepend=10.0) / 0.1, ZEROS, 10.0, DT_NS)
    stopped, adjustments = adjust(raw, START, AdjustLimits())
    assert adjustments
    finding = finding_of(judge(raw, stopped, START, LIMITS), Reason.REVERSAL)
    assert '2.36 m driven backwards' in finding.text


def test_judge_small_drift_after_a_stop_is_repaired_and_valid() -> None:
    # brakes to standstill and then drifts back with 0.3 m/s at most: a stop plan, flagged
    speeds = np.concatenate([np.linspace(5, 0, 31)[1:], np.linspace(0, -0.3, 34)])
    accel = np.diff(speeds, prepend=5.0) / 0.1
    reasons, result = judged(accel, ZEROS, 5.0)
    assert reasons == ()
    assert (result.speed_mps[30:] == 0.0).all()
    assert result.x_m.max() == result.x_m[63]


@pytest.mark.parametrize('name', [item.name for item in fields(GateLimits)])
def test_judge_every_limit_matters(name: str) -> None:
    # a mildly bad plan of each kind is found once the one limit is set below it, and only then
    raw = integrate(0.5 * ONES, 0.01 * ONES, 10.0, DT_NS)
    raw = changed(raw, 'speed_mps', 5, -0.2)
    raw = changed(raw, 'x_m', 7, -0.3)
    raw = changed(raw, 'y_m', 0, 0.2)
    result = replace(raw, heading_rad=raw.heading_rad + 0.1)
    assert judge(raw, result, START, LIMITS) == ()
    reason = {
        'max_accel_mps2': Reason.ACCELERATION,
        'max_curvature_1pm': Reason.CURVATURE,
        'max_lateral_accel_mps2': Reason.LATERAL_ACCELERATION,
        'max_start_error_m': Reason.START_ERROR,
        'max_reverse_m': Reason.REVERSAL,
        'max_reverse_speed_mps': Reason.REVERSAL,
        'max_low_speed_heading_change_rad': Reason.LOW_SPEED_HEADING,
    }[name]
    tight = replace(LIMITS, **{name: 0.0})
    assert finding_of(judge(raw, result, START, tight), reason)


@pytest.mark.parametrize(
    ('channel', 'limit', 'reason'),
    [
        ('accel_mps2', 9.8, Reason.ACCELERATION),
        ('curvature_1pm', 0.33, Reason.CURVATURE),
    ],
)
def test_judge_value_at_the_limit_is_valid_and_the_next_one_is_not(
    channel: str, limit: float, reason: Reason
) -> None:
    slow = integrate(ZEROS, ZEROS, 2.0, DT_NS)
    start = start_with(2.0)
    at = changed(slow, channel, 20, limit)
    assert judge(at, at, start, LIMITS) == ()
    above = changed(slow, channel, 20, math.nextafter(limit, math.inf))
    assert finding_of(judge(above, above, start, LIMITS), reason)


# ---- properties


actions = st.tuples(
    st.integers(0, 2**32),
    st.floats(-1.5, 30),
    st.floats(0, 6),
    st.floats(-3, 3),
    st.floats(0, 0.3),
)


@settings(max_examples=300, deadline=None)
@given(actions)
def test_judge_plan_without_findings_keeps_every_limit(
    action: tuple[int, float, float, float, float],
) -> None:
    seed, v0_mps, accel_scale, accel_mean, curvature_scale = action
    rng = np.random.default_rng(seed)
    accel = rng.normal(accel_mean, accel_scale, 64)
    curvature = rng.normal(0, curvature_scale, 64)
    reasons, got = judged(accel, curvature, v0_mps)
    expected = {finding.reason for finding in reasons}
    assert len(expected) == len(reasons)
    violated = set()
    for i in range(64):
        if abs(got.curvature_1pm[i]) > 0.33:
            violated.add(Reason.CURVATURE)
        if got.speed_mps[i] ** 2 * abs(got.curvature_1pm[i]) > 9.8:
            violated.add(Reason.LATERAL_ACCELERATION)
        if abs(got.accel_mps2[i]) > 9.8 + 1e-9:
            violated.add(Reason.ACCELERATION)
        if got.x_m[i] < -2.0:
            violated.add(Reason.REVERSAL)
        assert got.speed_mps[i] >= 0.0
    if math.hypot(got.x_m[0] - 0.1 * v0_mps, got.y_m[0]) > 2.0:
        violated.add(Reason.START_ERROR)
    assert violated <= expected


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), accel_mps2=st.floats(-9.0, -0.3), v0_mps=st.floats(0, 10))
def test_judge_adjusting_never_hides_a_strong_reversal(
    seed: int, accel_mps2: float, v0_mps: float
) -> None:
    rng = np.random.default_rng(seed)
    accel = np.clip(accel_mps2 + rng.normal(0, 0.3, 64), -9.8, 9.8)
    raw = integrate(accel, ZEROS, v0_mps, DT_NS)
    reasons, got = judged(accel, ZEROS, v0_mps)
    is_strong = raw.x_m.min() < -2.0 or raw.speed_mps.min() < -1.0
    if is_strong:
        assert Reason.REVERSAL in {finding.reason for finding in reasons}
    assert (got.speed_mps >= 0).all()


# ---- golden bad roll-outs


def test_judge_roll_out_that_starts_behind_and_sweeps_back_is_refused() -> None:
    # the published case: the first waypoint 10.6 m behind the rear axle, then 27 m backwards
    x_m = np.linspace(-10.6, -37.6, 64)
    raw = replace(
        integrate(ZEROS, ZEROS, 0.0, DT_NS),
        x_m=x_m,
        speed_mps=np.full(64, -27.0 / 6.3),
    )
    stopped, _ = adjust(raw, start_with(1.0), AdjustLimits())
    found = {f.reason: f.text for f in judge(raw, stopped, start_with(1.0), LIMITS)}
    assert set(found) == {Reason.START_ERROR, Reason.REVERSAL}
    assert '10.70 m' in found[Reason.START_ERROR]
    assert '-4.29 m/s' in found[Reason.REVERSAL]
    assert '37.60 m behind' in found[Reason.REVERSAL]


def test_judge_braking_on_into_reverse_is_refused() -> None:
    # 5 m/s and about -2.7 m/s² all the way: 23 m behind the start at the end
    reasons, result = judged(-2.6951437 * ONES, ZEROS, 5.0)
    finding = finding_of(reasons, Reason.REVERSAL)
    assert '23.20 m behind' in finding.text
    assert result.x_m.min() > 0.0


def test_judge_roll_out_that_folds_back_ahead_of_the_start_is_refused() -> None:
    # 15 m forward, then 8 m back over its own path; never behind the start
    speeds = np.concatenate([np.full(20, 6.0), np.linspace(6, -4, 20), np.full(24, -4.0)])
    reasons, _ = judged(np.diff(speeds, prepend=6.0) / 0.1, ZEROS, 6.0)
    finding = finding_of(reasons, Reason.REVERSAL)
    assert 'driven backwards' in finding.text
    assert 'behind the start' not in finding.text


def test_judge_roll_out_that_folds_by_turning_on_the_spot_is_refused() -> None:
    # half a turn within one metre at 3 m/s
    curvature = ZEROS.copy()
    curvature[30:33] = math.pi / 0.9
    reasons, _ = judged(ZEROS, curvature, 3.0)
    assert {f.reason for f in reasons} == {Reason.CURVATURE, Reason.LATERAL_ACCELERATION}


@pytest.mark.parametrize('curvature_1pm', [5.0, -5.0, 500.0])
def test_judge_curvature_explosion_near_standstill_is_refused_though_it_was_repaired(
    curvature_1pm: float,
) -> None:
    # crawls at 0.05 m/s and turns by 0.25 rad/s or more
    reasons, result = judged(ZEROS, curvature_1pm * ONES, 0.15)
    finding_of(reasons, Reason.LOW_SPEED_HEADING)
    assert not result.heading_rad.any()


def test_judge_curvature_explosion_without_the_repair_is_a_curvature() -> None:
    raw = integrate(ZEROS, 5.0 * ONES, 0.15, DT_NS)
    reasons = judge(raw, raw, start_with(0.15), LIMITS)
    assert finding_of(reasons, Reason.CURVATURE)


def test_judge_u_turn_that_comes_back_past_the_start_needs_a_wider_limit() -> None:
    # 6 m/s on a radius of 8 m, half a turn in 4.2 s, then back beside the own path
    curvature = np.where(np.arange(64) < 42, 0.125, 0.0)
    reasons, result = judged(ZEROS, curvature, 6.0)
    assert result.heading_rad[63] == pytest.approx(3.15, abs=0.01)
    assert {f.reason for f in reasons} == {Reason.REVERSAL}
    assert 'behind the start' in reasons[0].text
    wide = replace(LIMITS, max_reverse_m=20.0)
    raw = integrate(ZEROS, curvature, 6.0, DT_NS)
    assert judge(raw, raw, start_with(6.0), wide) == ()
