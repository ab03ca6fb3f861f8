# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import replace
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from alpamayo_node.contracts import PoseSample
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.plan.history import HistoryLimits
from alpamayo_node.plan.history import OdometryBuffer
from alpamayo_node.plan.history import SpeedSource
from alpamayo_node.plan.history import ego_start
from tests.plan.rotations import matrix_of
from tests.plan.rotations import quaternion_of

T0_NS = 1_700_000_000_123_456_789
LIMITS = HistoryLimits()
type Motion = Callable[[float], PoseSample]


def cruise(
    speed_mps: float = 10.0,
    yaw_rad: float = 0.0,
    origin_m: tuple[float, float, float] = (0.0, 0.0, 0.0),
    twist_mps: float | None = math.nan,
) -> Motion:
    """Straight drive through `origin_m` at t0; the twist is true unless it is given."""

    def at(time_s: float) -> PoseSample:
        along_m = speed_mps * time_s
        return PoseSample(
            stamp_ns=T0_NS + round(time_s * 1e9),
            position_m=(
                origin_m[0] + along_m * math.cos(yaw_rad),
                origin_m[1] + along_m * math.sin(yaw_rad),
                origin_m[2],
            ),
            orientation_xyzw=tuple(quaternion_of(0.0, 0.0, yaw_rad)),
            speed_mps=speed_mps if twist_mps is not None and math.isnan(twist_mps) else twist_mps,
        )

    return at


def turn(time_s: float) -> PoseSample:
    """0.3 rad/s at 10 m/s on a closed-form arc through the origin."""
    yaw_rad = 0.3 * time_s
    return PoseSample(
        stamp_ns=T0_NS + round(time_s * 1e9),
        position_m=(10 / 0.3 * math.sin(yaw_rad), 10 / 0.3 * (1 - math.cos(yaw_rad)), 0.0),
        orientation_xyzw=tuple(quaternion_of(0.0, 0.0, yaw_rad)),
        speed_mps=10.0,
    )


def sampled(
    motion: Motion, rate_hz: float, start_s: float = -2.0, end_s: float = 0.5
) -> list[PoseSample]:
    n = math.floor((end_s - start_s) * rate_hz + 1e-9) + 1
    return [motion(start_s + i / rate_hz) for i in range(n)]


def moved(sample: PoseSample, *by_m: float) -> PoseSample:
    return replace(sample, position_m=tuple(np.add(sample.position_m, by_m)))


def refusal_of(samples: Sequence[PoseSample], limits: HistoryLimits = LIMITS) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ego_start(samples, T0_NS, 'map', limits)
    return caught.value


# ---- what is found


@pytest.mark.parametrize('rate_hz', [10, 20, 50, 100])
def test_ego_start_does_not_depend_on_the_rate(rate_hz: int) -> None:
    # A chord of the arc over one sample interval is off by at most v w dt^2 / 8 = 4 mm at 10 Hz.
    start = ego_start(sampled(turn, rate_hz), T0_NS, 'map', LIMITS)
    assert start.position_m == pytest.approx((0.0, 0.0, 0.0), abs=0.004)
    assert start.orientation_xyzw == pytest.approx((0.0, 0.0, 0.0, 1.0), abs=1e-9)
    assert start.speed_from_positions_mps == pytest.approx(10.000159, abs=2e-3)
    assert start.speed_from_twist_mps == pytest.approx(10.0)


@pytest.mark.parametrize('phase_s', [0.0, 0.013, 0.05, 0.099])
@pytest.mark.parametrize('rate_hz', [10, 20, 50, 100])
def test_ego_start_does_not_depend_on_the_phase_of_the_samples(
    rate_hz: int, phase_s: float
) -> None:
    samples = sampled(turn, rate_hz, start_s=-2.0 + phase_s)
    start = ego_start(samples, T0_NS, 'map', LIMITS)
    assert start.position_m == pytest.approx((0.0, 0.0, 0.0), abs=0.004)
    # the estimate leans on 1/dt of the last step, so 4 mm of chord may show as 0.06 m/s
    assert start.speed_from_positions_mps == pytest.approx(
        10.0, abs=0.06 if rate_hz == 10 else 0.02
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), rate_hz=st.sampled_from([20, 50, 100]))
def test_ego_start_with_jitter_and_lost_samples_is_the_same(seed: int, rate_hz: int) -> None:
    rng = np.random.default_rng(seed)
    times_s = np.arange(-2.0, 0.5, 1 / rate_hz)
    times_s += rng.uniform(-0.3, 0.3, len(times_s)) / rate_hz
    kept = rng.uniform(size=len(times_s)) > 0.2
    kept[1:] |= ~kept[:-1]  # never two in a row
    start = ego_start([turn(t) for t in times_s[kept]], T0_NS, 'map', LIMITS)
    assert start.position_m == pytest.approx((0.0, 0.0, 0.0), abs=0.006)
    assert start.speed_mps == pytest.approx(10.0, abs=0.06)


def test_ego_start_of_a_straight_drive_is_exact_however_samples_lie() -> None:
    times_s = [-1.63, -1.4, -1.31, -1.1, -0.94, -0.7, -0.52, -0.31, -0.3, -0.07, 0.11]
    start = ego_start([cruise()(t) for t in times_s], T0_NS, 'map', LIMITS)
    assert start.position_m == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
    # what the estimator makes of 16 exact positions at 10 m/s
    assert start.speed_mps == pytest.approx(9.999409, abs=1e-6)


def test_ego_start_carries_instant_and_frame() -> None:
    start = ego_start(sampled(cruise(), 50), T0_NS, 'odom', LIMITS)
    assert start.t0_ns == T0_NS
    assert start.frame_id == 'odom'


def test_ego_start_takes_the_pose_at_t0_and_not_the_newest() -> None:
    # 2 s of newer samples: the vehicle is 20 m farther by now
    start = ego_start(sampled(cruise(), 50, end_s=2.0), T0_NS, 'map', LIMITS)
    assert start.position_m[0] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize('yaw_rad', [0.0, 0.7, -2.0, math.pi])
def test_ego_start_in_large_map_coordinates_loses_nothing(yaw_rad: float) -> None:
    # At 4e6 m the last bit is 0.5 nm; the estimate weighs positions by up to 16 per second.
    origin_m = (500_000.0, 4_000_000.0, 250.0)
    far = ego_start(sampled(cruise(10.0, yaw_rad, origin_m), 50), T0_NS, 'map', LIMITS)
    near = ego_start(sampled(cruise(10.0, yaw_rad), 50), T0_NS, 'map', LIMITS)
    assert far.position_m == pytest.approx(origin_m, abs=2e-9, rel=0)
    assert far.speed_mps == pytest.approx(near.speed_mps, abs=1e-7)
    assert near.speed_mps == pytest.approx(9.999409, abs=1e-6)


def test_ego_start_on_a_slope_measures_speed_along_the_road() -> None:
    # 10 % slope, heading 0.5: the ego frame is tilted, so 10 m/s along the road are 10 m/s
    pose = (0.0, -math.atan(0.1), 0.5)
    direction = matrix_of(*pose)[:, 0]
    samples = [
        PoseSample(
            stamp_ns=T0_NS + round(t * 1e9),
            position_m=tuple(10.0 * t * direction),
            orientation_xyzw=tuple(quaternion_of(*pose)),
            speed_mps=10.0,
        )
        for t in np.arange(-2.0, 0.1, 0.02)
    ]
    start = ego_start(samples, T0_NS, 'map', LIMITS)
    assert start.speed_mps == pytest.approx(9.999409, abs=1e-6)
    assert start.orientation_xyzw == pytest.approx(tuple(quaternion_of(*pose)), abs=1e-12)


def test_ego_start_backing_up_has_a_negative_speed() -> None:
    start = ego_start(sampled(cruise(-2.0), 50), T0_NS, 'map', LIMITS)
    assert start.speed_mps == pytest.approx(-2.0, abs=0.001)
    assert start.speed_from_twist_mps == -2.0


def test_ego_start_at_rest_is_zero() -> None:
    assert ego_start(sampled(cruise(0.0), 50), T0_NS, 'map', LIMITS).speed_mps == 0.0


def test_ego_start_accepts_quaternions_of_either_sign() -> None:
    samples = sampled(turn, 50)
    flipped = [
        replace(s, orientation_xyzw=tuple(-q for q in s.orientation_xyzw)) if i % 2 else s
        for i, s in enumerate(samples)
    ]
    expected = ego_start(samples, T0_NS, 'map', LIMITS)
    got = ego_start(flipped, T0_NS, 'map', LIMITS)
    assert got.speed_mps == pytest.approx(expected.speed_mps, abs=1e-12)


def test_ego_start_normalises_a_slightly_long_quaternion() -> None:
    samples = [
        replace(s, orientation_xyzw=tuple(1.0005 * q for q in s.orientation_xyzw))
        for s in sampled(cruise(yaw_rad=0.7), 50)
    ]
    start = ego_start(samples, T0_NS, 'map', LIMITS)
    assert sum(q * q for q in start.orientation_xyzw) == pytest.approx(1.0, abs=1e-14)
    assert start.speed_mps == pytest.approx(9.999409, abs=1e-6)


def test_ego_start_turns_evenly_between_quaternions_of_different_length() -> None:
    samples = [
        replace(s, orientation_xyzw=tuple((1.0009, 0.9991)[i % 2] * q for q in s.orientation_xyzw))
        for i, s in enumerate(sampled(turn, 10, start_s=-1.65, end_s=0.05))
    ]
    start = ego_start(samples, T0_NS, 'map', LIMITS)
    assert start.orientation_xyzw == pytest.approx((0.0, 0.0, 0.0, 1.0), abs=1e-7)


def test_ego_start_interpolates_the_twist_at_t0() -> None:
    samples = [replace(cruise()(t), speed_mps=10.0 + 2.0 * t) for t in np.arange(-1.65, 0.2, 0.1)]
    assert ego_start(samples, T0_NS, 'map', LIMITS).speed_from_twist_mps == pytest.approx(10.0)


def test_ego_start_extrapolates_20_ms_at_either_end() -> None:
    samples = sampled(cruise(), 50, start_s=-1.48, end_s=-0.02)
    start = ego_start(samples, T0_NS, 'map', LIMITS)
    assert start.position_m[0] == pytest.approx(0.0, abs=1e-9)
    assert start.speed_mps == pytest.approx(9.999409, abs=1e-6)
    assert start.speed_from_twist_mps == pytest.approx(10.0)


# ---- sources of the speed


@pytest.mark.parametrize(
    ('source', 'expected_mps'),
    [
        (SpeedSource.POSITIONS, 9.999409),
        (SpeedSource.TWIST, 10.4),
        (SpeedSource.BLEND, 10.1997045),
    ],
)
def test_ego_start_speed_source_chooses(source: SpeedSource, expected_mps: float) -> None:
    limits = HistoryLimits(speed_source=source)
    start = ego_start(sampled(cruise(twist_mps=10.4), 50), T0_NS, 'map', limits)
    assert start.speed_mps == pytest.approx(expected_mps, abs=1e-6)
    assert start.speed_from_positions_mps == pytest.approx(9.999409, abs=1e-6)
    assert start.speed_from_twist_mps == pytest.approx(10.4)


def test_ego_start_without_twist_has_none_and_uses_the_positions() -> None:
    start = ego_start(sampled(cruise(twist_mps=None), 50), T0_NS, 'map', LIMITS)
    assert start.speed_from_twist_mps is None
    assert start.speed_mps == start.speed_from_positions_mps


@pytest.mark.parametrize('source', [SpeedSource.TWIST, SpeedSource.BLEND])
def test_ego_start_without_the_asked_twist_is_refused(source: SpeedSource) -> None:
    refusal = refusal_of(sampled(cruise(twist_mps=None), 50), HistoryLimits(speed_source=source))
    assert refusal.reason is Reason.HISTORY_MISSING
    assert source.value in refusal.text


@pytest.mark.parametrize('source', list(SpeedSource))
@pytest.mark.parametrize(('twist_mps', 'agrees'), [(11.66, True), (11.67, False), (8.62, False)])
def test_ego_start_speed_mismatch_is_refused_whatever_the_source(
    source: SpeedSource, twist_mps: float, agrees: bool
) -> None:
    # at most 0.5 m/s plus 10 % of the twist: 11.666 and 8.635 are the edges for 9.9994 m/s
    samples = sampled(cruise(twist_mps=twist_mps), 50)
    limits = HistoryLimits(speed_source=source)
    if agrees:
        ego_start(samples, T0_NS, 'map', limits)
        return
    refusal = refusal_of(samples, limits)
    assert refusal.reason is Reason.SPEED_MISMATCH
    assert '10.00' in refusal.text
    assert f'{twist_mps:.2f}' in refusal.text


def test_ego_start_twist_of_zero_while_driving_is_refused_as_a_mismatch_at_any_rate() -> None:
    for rate_hz in (10, 20, 50, 100):
        refusal = refusal_of(sampled(cruise(20.0, twist_mps=0.0), rate_hz))
        assert refusal.reason is Reason.SPEED_MISMATCH


def test_ego_start_mixed_up_axes_are_refused() -> None:
    # orientation says east, motion is north: the speed along the vehicle is 0
    samples = [
        replace(s, orientation_xyzw=(0.0, 0.0, 0.0, 1.0))
        for s in sampled(cruise(yaw_rad=math.pi / 2), 50)
    ]
    assert refusal_of(samples).reason is Reason.SPEED_MISMATCH


# ---- what is refused


def test_ego_start_without_samples_is_missing() -> None:
    assert refusal_of([]).reason is Reason.HISTORY_MISSING


@pytest.mark.parametrize('start_s', [-1.479, -1.0, 0.0, 0.2])
def test_ego_start_short_history_is_refused(start_s: float) -> None:
    refusal = refusal_of(sampled(cruise(), 100, start_s=start_s))
    assert refusal.reason is Reason.HISTORY_SHORT
    assert f'{start_s:+.3f} s' in refusal.text
    assert '1.500 s' in refusal.text


def test_ego_start_single_sample_at_t0_is_short() -> None:
    assert refusal_of([cruise()(0.0)]).reason is Reason.HISTORY_SHORT


@pytest.mark.parametrize('age_s', [0.021, 0.3, 10.0])
def test_ego_start_old_samples_are_not_extrapolated(age_s: float) -> None:
    samples = [cruise()(-age_s - 0.02 * i) for i in reversed(range(120))]
    refusal = refusal_of(samples)
    assert refusal.reason is Reason.HISTORY_EXTRAPOLATION
    assert f'{age_s:.3f} s' in refusal.text


@pytest.mark.parametrize('from_s', [-1.55, -0.9, -0.249])
def test_ego_start_gap_anywhere_is_refused(from_s: float) -> None:
    gap_s = 0.26
    times_s = np.concatenate(
        [np.arange(from_s, -2.0, -0.02)[::-1], np.arange(from_s + gap_s, 0.5, 0.02)]
    )
    refusal = refusal_of([cruise()(t) for t in times_s])
    assert refusal.reason is Reason.HISTORY_GAP
    assert '0.260 s' in refusal.text
    assert f'{from_s:+.3f} s' in refusal.text


def test_ego_start_gap_of_the_limit_is_accepted() -> None:
    times_s = [-1.5, -1.25, -1.0, -0.75, -0.5, -0.25, 0.0]
    ego_start([cruise()(t) for t in times_s], T0_NS, 'map', LIMITS)


@pytest.mark.parametrize('ends_s', [(-1.6, 0.1), (-1.5, 0.0)])
def test_ego_start_gap_outside_of_the_window_does_not_matter(ends_s: tuple[float, float]) -> None:
    # also where the window ends exactly on a sample
    start_s, end_s = ends_s
    times_s = [-9.0, *np.linspace(start_s, end_s, 31), 5.0]
    ego_start([cruise()(t) for t in times_s], T0_NS, 'map', LIMITS)


@pytest.mark.parametrize('i_from', range(1, 16))
@pytest.mark.parametrize('jump_m', [0.8, 5.0, 50.0, -0.8, -50.0])
def test_ego_start_jump_anywhere_is_found(i_from: int, jump_m: float) -> None:
    samples = sampled(cruise(), 10, start_s=-1.5, end_s=0.0)
    jumped = [moved(s, jump_m, 0.0, 0.0) if i < i_from else s for i, s in enumerate(samples)]
    refusal = refusal_of(jumped)
    assert refusal.reason is Reason.HISTORY_JUMP
    assert ' m ' in refusal.text


@pytest.mark.parametrize('by_m', [(0.0, 1.5, 0.0), (0.0, 0.0, -1.5), (-1.5, 0.0, 0.0)])
@pytest.mark.parametrize('rate_hz', [10, 50, 100])
def test_ego_start_jump_in_any_direction_is_found_at_any_rate(
    rate_hz: int, by_m: tuple[float, float, float]
) -> None:
    samples = sampled(cruise(), rate_hz)
    for i in range(rate_hz // 2 + 2, 2 * rate_hz, max(1, rate_hz // 7)):
        jumped = [moved(s, *by_m) if j < i else s for j, s in enumerate(samples)]
        assert refusal_of(jumped).reason is Reason.HISTORY_JUMP, i


@pytest.mark.parametrize(('by_m', 'is_jump'), [(1.69, False), (1.71, True)])
def test_ego_start_outlier_between_the_poses_is_measured_against_the_largest_speed(
    by_m: float, is_jump: bool
) -> None:
    # -0.36 s is on no 0.1 s pose; 70 m/s and 0.5 m allow 1.9 m in 20 ms, of which 0.2 m are driven
    samples = [
        moved(s, by_m, 0.0, 0.0) if s.stamp_ns == T0_NS - 360_000_000 else s
        for s in sampled(cruise(), 50)
    ]
    if is_jump:
        assert '1.91 m within 0.020 s from the sample at t0 -0.380 s' in refusal_of(samples).text
    else:
        ego_start(samples, T0_NS, 'map', LIMITS)


@pytest.mark.parametrize(('accel_mps2', 'is_jump'), [(19.0, False), (21.0, True)])
def test_ego_start_acceleration_is_limited_where_no_noise_is_allowed(
    accel_mps2: float, is_jump: bool
) -> None:
    def braking(t: float) -> PoseSample:
        return moved(cruise(40.0, twist_mps=None)(t), -0.5 * accel_mps2 * t * t, 0.0, 0.0)

    samples = sampled(braking, 10, start_s=-1.5, end_s=0.0)
    limits = HistoryLimits(jump_margin_m=0.0)
    if is_jump:
        assert refusal_of(samples, limits).reason is Reason.HISTORY_JUMP
    else:
        ego_start(samples, T0_NS, 'map', limits)


@pytest.mark.parametrize('i_out', range(16))
def test_ego_start_outlier_anywhere_is_found(i_out: int) -> None:
    # 1 m at index 12 alone would shift the speed by 2.6 m/s
    samples = sampled(cruise(twist_mps=None), 10, start_s=-1.5, end_s=0.0)
    samples[i_out] = moved(samples[i_out], 1.0, 0.0, 0.0)
    assert refusal_of(samples).reason is Reason.HISTORY_JUMP


def test_ego_start_jump_outside_of_the_window_does_not_matter() -> None:
    samples = sampled(cruise(), 50, start_s=-3.0, end_s=2.0)
    early = [
        moved(s, 50.0, 0.0, 0.0) if s.stamp_ns < T0_NS - 1_700_000_000 else s for s in samples
    ]
    late = [moved(s, 50.0, 0.0, 0.0) if s.stamp_ns > T0_NS + 100_000_000 else s for s in early]
    ego_start(late, T0_NS, 'map', LIMITS)


def test_ego_start_hard_driving_and_noise_are_no_jump() -> None:
    # emergency braking with 10 m/s² to standstill, and 1 cm of noise, at highway speed
    rng = np.random.default_rng(0)

    def braking(t: float) -> PoseSample:
        x_m = 30.0 * t - 5.0 * t * t if t < 0 else 30.0 * t
        sample = cruise(30.0, twist_mps=None)(t)
        return replace(sample, position_m=(x_m, *rng.normal(0, 0.01, 2)))

    ego_start(sampled(braking, 50, end_s=0.0), T0_NS, 'map', LIMITS)


@pytest.mark.parametrize('i_from', [3, 40, 99])
def test_ego_start_jump_of_the_heading_is_found(i_from: int) -> None:
    samples = sampled(cruise(0.0), 50, start_s=-2.0, end_s=0.0)
    flipped = tuple(quaternion_of(0.0, 0.0, 1.0))
    turned = [
        replace(s, orientation_xyzw=flipped) if i >= i_from else s for i, s in enumerate(samples)
    ]
    if i_from == 3:  # before the window
        ego_start(turned, T0_NS, 'map', LIMITS)
    else:
        assert refusal_of(turned).reason is Reason.HISTORY_JUMP


@pytest.mark.parametrize('i_bad', [1, 60, 124])
@pytest.mark.parametrize('by_ns', [0, 1_000_000])
def test_ego_start_stamps_that_do_not_increase_are_refused(i_bad: int, by_ns: int) -> None:
    samples = sampled(cruise(), 50)
    samples[i_bad] = replace(samples[i_bad], stamp_ns=samples[i_bad - 1].stamp_ns - by_ns)
    refusal = refusal_of(samples)
    assert refusal.reason is Reason.HISTORY_BACKWARD
    assert f'sample {i_bad} ' in refusal.text


BAD_FIELDS = [
    {'position_m': (math.nan, 0.0, 0.0)},
    {'position_m': (0.0, math.inf, 0.0)},
    {'orientation_xyzw': (0.0, 0.0, 0.0, 0.0)},
    {'orientation_xyzw': (0.0, 0.0, 0.0, 1.1)},
    {'orientation_xyzw': (math.nan, 0.0, 0.0, 1.0)},
    {'speed_mps': math.nan},
    {'speed_mps': -math.inf},
]


@pytest.mark.parametrize('bad', BAD_FIELDS)
@pytest.mark.parametrize('i_bad', [30, 60, 100])
def test_ego_start_damaged_sample_in_the_window_is_refused(bad: dict, i_bad: int) -> None:
    samples = sampled(cruise(), 50)
    samples[i_bad] = replace(samples[i_bad], **bad)
    refusal = refusal_of(samples)
    assert refusal.reason is Reason.HISTORY_INVALID
    assert str(samples[i_bad].stamp_ns) in refusal.text


def test_ego_start_absurd_positions_are_a_jump() -> None:
    samples = sampled(cruise(), 50)
    samples[60] = replace(samples[60], position_m=(1.7e308, 0.0, 0.0))
    samples[61] = replace(samples[61], position_m=(-1.7e308, 0.0, 0.0))
    assert refusal_of(samples).reason is Reason.HISTORY_JUMP


# ---- the buffer


def filled(samples: Sequence[PoseSample], limits: HistoryLimits = LIMITS) -> OdometryBuffer:
    buffer = OdometryBuffer(limits)
    for sample in samples:
        buffer.append(sample)
    return buffer


def test_odometry_buffer_keeps_samples_in_order() -> None:
    samples = sampled(cruise(), 50)
    buffer = filled(samples)
    assert buffer.snapshot() == tuple(samples)
    assert len(buffer) == len(samples)


def test_odometry_buffer_feeds_ego_start() -> None:
    start = ego_start(filled(sampled(cruise(), 50)).snapshot(), T0_NS, 'map', LIMITS)
    assert start.speed_mps == pytest.approx(9.999409, abs=1e-6)


def test_odometry_buffer_forgets_by_age() -> None:
    buffer = filled(sampled(cruise(), 50, end_s=10.0), HistoryLimits(buffer_length_s=2.0))
    stamps_ns = [sample.stamp_ns for sample in buffer.snapshot()]
    assert stamps_ns[-1] - stamps_ns[0] == pytest.approx(2e9, abs=2)
    assert len(stamps_ns) in (100, 101)


def test_odometry_buffer_forgets_by_number() -> None:
    samples = sampled(cruise(), 100)
    buffer = filled(samples, HistoryLimits(buffer_capacity=20))
    assert buffer.snapshot() == tuple(samples[-20:])


def test_odometry_buffer_ignores_a_repeated_stamp() -> None:
    buffer = filled(sampled(cruise(), 50))
    newest = buffer.snapshot()[-1]
    buffer.append(replace(newest, speed_mps=99.0))
    assert buffer.snapshot()[-1] == newest


@pytest.mark.parametrize('bad', BAD_FIELDS)
def test_odometry_buffer_refuses_a_damaged_sample_and_keeps_the_rest(bad: dict) -> None:
    samples = sampled(cruise(), 50, end_s=0.0)
    buffer = filled(samples)
    with pytest.raises(Refusal) as refusal:
        buffer.append(replace(cruise()(0.02), **bad))
    assert refusal.value.reason is Reason.HISTORY_INVALID
    assert buffer.snapshot() == tuple(samples)


def test_odometry_buffer_refuses_a_late_sample_and_keeps_the_rest() -> None:
    samples = sampled(cruise(), 50, end_s=0.0)
    buffer = filled(samples)
    with pytest.raises(Refusal) as refusal:
        buffer.append(cruise()(-0.1))
    assert refusal.value.reason is Reason.HISTORY_BACKWARD
    assert '0.100 s' in refusal.value.text
    assert buffer.snapshot() == tuple(samples)


def test_odometry_buffer_starts_anew_when_the_clock_was_set_back() -> None:
    buffer = filled(sampled(cruise(), 50, end_s=0.0))
    again = cruise()(-1.9)
    with pytest.raises(Refusal) as refusal:
        buffer.append(again)
    assert refusal.value.reason is Reason.HISTORY_BACKWARD
    assert buffer.snapshot() == (again,)
    for sample in sampled(cruise(), 50, start_s=-1.88, end_s=0.0):
        buffer.append(sample)
    ego_start(buffer.snapshot(), T0_NS, 'map', LIMITS)


def test_odometry_buffer_reports_a_jump_once_and_serves_both_sides_of_it() -> None:
    buffer = filled(sampled(cruise(), 50, end_s=0.1))
    with pytest.raises(Refusal) as refusal:
        buffer.append(moved(cruise()(0.12), 100.0, 0.0, 0.0))
    assert refusal.value.reason is Reason.HISTORY_JUMP
    assert '100.20 m' in refusal.value.text
    for sample in sampled(cruise(), 50, start_s=0.14, end_s=2.0):
        buffer.append(moved(sample, 100.0, 0.0, 0.0))
    samples = buffer.snapshot()
    ego_start(samples, T0_NS, 'map', LIMITS)  # before the jump
    ego_start(samples, T0_NS + 1_800_000_000, 'map', LIMITS)  # after it
    with pytest.raises(Refusal) as across:
        ego_start(samples, T0_NS + 1_000_000_000, 'map', LIMITS)
    assert across.value.reason is Reason.HISTORY_JUMP


def test_odometry_buffer_clear_forgets_everything() -> None:
    buffer = filled(sampled(cruise(), 50))
    buffer.clear()
    assert len(buffer) == 0
    buffer.append(cruise()(-100.0))
    assert len(buffer) == 1
