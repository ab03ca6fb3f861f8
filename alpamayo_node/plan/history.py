# SPDX-License-Identifier: Apache-2.0
"""
Find out where the ego vehicle was, and how fast, in the 1.5 s before t0.

The model was trained on 16 poses at t0 - k 0.1 s, k = 15 ... 0. Samples come at any rate, with
jitter and losses, so poses are interpolated by stamp (position linearly, rotation by slerp) and
never picked by count. What cannot be vouched for is refused with its reason: data that is missing,
short, sparse, out of order, damaged, or that jumps.

Speed at t0 comes from the positions, from the measured twist, or from the mean of both; wherever a
twist exists the two must agree.

Times are integer nanoseconds of one clock. Positions may be large (map coordinates): they are
interpolated where they are and then taken relative to the one at t0, which loses nothing that
their own rounding has not lost already.
Knows no clock: t0 is an argument. Used by one thread.
Source of the estimate: `plan.start_speed`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
import math

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import EgoStart
from alpamayo_node.contracts import PoseSample
from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.plan.frames import conjugate
from alpamayo_node.plan.frames import is_rotation
from alpamayo_node.plan.frames import multiply
from alpamayo_node.plan.frames import normalised
from alpamayo_node.plan.frames import norms
from alpamayo_node.plan.frames import rotate
from alpamayo_node.plan.frames import rotation_angles
from alpamayo_node.plan.frames import slerp
from alpamayo_node.plan.frames import yaws_of
from alpamayo_node.plan.limits import require_finite_limits
from alpamayo_node.plan.start_speed import estimate_start_speed

N_POSES = 16
STEP_NS = 100_000_000
SPAN_NS = (N_POSES - 1) * STEP_NS
"""What the model was trained with; not a choice."""

_TARGETS_NS = np.arange(-SPAN_NS, 1, STEP_NS, dtype=np.int64)
_STEP_S = STEP_NS / NS_PER_S


class SpeedSource(Enum):
    """Where the speed that a plan starts from is taken."""

    POSITIONS = 'positions'
    """The fit to the 16 positions, as in training."""
    TWIST = 'twist'
    """The measured speed, interpolated at t0."""
    BLEND = 'blend'
    """The mean of both."""


@dataclass(frozen=True)
class HistoryLimits:
    """What an ego history must satisfy, and how much of it is kept."""

    max_gap_s: float = 0.25
    """Between neighbouring samples."""
    max_extrapolation_s: float = 0.02
    """By which the samples may miss either end of the 1.5 s."""
    max_backward_s: float = 0.1
    """A stamp older than the newest one by more is no late sample: the clock was set back."""
    max_speed_mps: float = 70.0
    """Faster motion between neighbouring samples is a jump."""
    max_accel_mps2: float = 20.0
    """Stronger acceleration, in any direction, between the 0.1 s poses is a jump."""
    jump_margin_m: float = 0.5
    """Position noise that is allowed on top of both."""
    max_turn_rate_rps: float = 3.0
    """Faster rotation between the 0.1 s poses is a jump."""
    speed_source: SpeedSource = SpeedSource.POSITIONS
    max_speed_mismatch_mps: float = 0.5
    """Between speed from positions and twist, plus `max_speed_mismatch_ratio` of the twist."""
    max_speed_mismatch_ratio: float = 0.1
    buffer_length_s: float = 10.0
    """Age of the oldest sample kept; contexts are planned seconds after their t0."""
    buffer_capacity: int = 4096
    """Samples kept, whatever their rate."""

    def __post_init__(self) -> None:
        require_finite_limits('history', self)
        if not isinstance(self.speed_source, SpeedSource):
            raise ConfigError('history.speed_source', self.speed_source, 'must be a SpeedSource')
        if self.max_extrapolation_s > _STEP_S:
            rule = f'must be at most {_STEP_S} s'
            raise ConfigError('history.max_extrapolation_s', self.max_extrapolation_s, rule)
        if self.max_gap_s == 0.0:
            raise ConfigError('history.max_gap_s', self.max_gap_s, 'must be above 0')
        if self.buffer_length_s * NS_PER_S < SPAN_NS:
            rule = f'must hold the {SPAN_NS / NS_PER_S} s that a plan needs'
            raise ConfigError('history.buffer_length_s', self.buffer_length_s, rule)
        if self.buffer_capacity < N_POSES:
            rule = f'must be at least {N_POSES}'
            raise ConfigError('history.buffer_capacity', self.buffer_capacity, rule)


class OdometryBuffer:
    """The newest samples of one odometry source, in order of their stamps."""

    def __init__(self, limits: HistoryLimits) -> None:
        self._limits = limits
        self._samples: deque[PoseSample] = deque(maxlen=limits.buffer_capacity)

    def __len__(self) -> int:
        return len(self._samples)

    def append(self, sample: PoseSample) -> None:
        """
        Take one sample, and say so when it does not follow from the ones before.

        A repeated stamp is ignored. After a refusal the buffer holds:

        - HISTORY_INVALID, or HISTORY_BACKWARD within `max_backward_s`: what it held before;
        - HISTORY_BACKWARD beyond that: this sample alone, since the earlier ones belong to another
          run of the clock;
        - HISTORY_JUMP: this sample too, so that plans from before the jump can still be made;
          `ego_start` refuses each window that contains the jump.

        :raises Refusal: HISTORY_INVALID (not finite, or no unit quaternion), HISTORY_BACKWARD,
            HISTORY_JUMP (farther from the newest sample than `max_speed_mps` and margin allow)
        """
        _require_valid(sample)
        if not self._samples:
            self._samples.append(sample)
            return
        newest = self._samples[-1]
        step_ns = sample.stamp_ns - newest.stamp_ns
        if step_ns < 0:
            self._go_back(sample, -step_ns)
        elif step_ns > 0:
            self._samples.append(sample)
            self._forget(sample.stamp_ns)
            distance_m = math.dist(sample.position_m, newest.position_m)
            _require_reachable(distance_m, step_ns / NS_PER_S, 'the newest sample', self._limits)

    def clear(self) -> None:
        """Forget everything, as after a jump of the clock."""
        self._samples.clear()

    def snapshot(self) -> tuple[PoseSample, ...]:
        """All samples, oldest first."""
        return tuple(self._samples)

    def _go_back(self, sample: PoseSample, by_ns: int) -> None:
        text = f'sample is {_s(by_ns)} older than the newest one'
        if by_ns > self._limits.max_backward_s * NS_PER_S:
            self._samples.clear()
            self._samples.append(sample)
            text += f', more than {self._limits.max_backward_s} s: the buffer starts anew'
        raise Refusal(Reason.HISTORY_BACKWARD, text)

    def _forget(self, now_ns: int) -> None:
        oldest_ns = now_ns - round(self._limits.buffer_length_s * NS_PER_S)
        while self._samples[0].stamp_ns < oldest_ns:
            self._samples.popleft()


def ego_start(
    samples: Sequence[PoseSample], t0_ns: int, frame_id: str, limits: HistoryLimits
) -> EgoStart:
    """
    Determine pose and speed at t0 from samples around [t0 - 1.5 s, t0].

    Samples outside of that window serve at most as the neighbours of its ends.

    :param samples: stamps strictly increasing, all poses in one fixed frame
    :param t0_ns: instant that the plan starts from
    :param frame_id: name of that frame, passed on
    :return: start of the plan; `speed_from_twist_mps` is None where the source gives no speed
    :raises Refusal: with a HISTORY_* reason, or SPEED_MISMATCH
    """
    window = _window(samples, t0_ns, limits)
    positions_m, orientations = _resample(window, limits)
    to_ego = conjugate(orientations[-1])
    in_ego_m = rotate(to_ego, positions_m - positions_m[-1])
    yaws_rad = yaws_of(multiply(to_ego, orientations))
    from_positions_mps = estimate_start_speed(in_ego_m[:, :2], yaws_rad, STEP_NS)
    from_twist_mps = window.speed_at_t0()
    return EgoStart(
        t0_ns=t0_ns,
        frame_id=frame_id,
        position_m=_triple(positions_m[-1]),
        orientation_xyzw=_quadruple(orientations[-1]),
        speed_mps=_choose_speed(from_positions_mps, from_twist_mps, limits),
        speed_from_positions_mps=from_positions_mps,
        speed_from_twist_mps=from_twist_mps,
    )


@dataclass(frozen=True)
class _Window:
    """Samples that matter for one t0; times relative to it."""

    samples: Sequence[PoseSample]
    times_ns: NDArray[np.int64]

    def brackets(self) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Index of the sample before each of the 16 instants, and the way to the next one."""
        last = len(self.times_ns) - 2
        before = np.clip(np.searchsorted(self.times_ns, _TARGETS_NS, 'right') - 1, 0, last)
        since_ns = _TARGETS_NS - self.times_ns[before]
        return before, since_ns / (self.times_ns[before + 1] - self.times_ns[before])

    def speed_at_t0(self) -> float | None:
        before, fraction = self.brackets()
        start_mps = self.samples[before[-1]].speed_mps
        end_mps = self.samples[before[-1] + 1].speed_mps
        if start_mps is None or end_mps is None:
            return None
        return float(start_mps + fraction[-1] * (end_mps - start_mps))


def _window(samples: Sequence[PoseSample], t0_ns: int, limits: HistoryLimits) -> _Window:
    if not samples:
        raise Refusal(Reason.HISTORY_MISSING, 'there is no ego pose; 1.5 s before t0 are needed')
    times_ns = np.array([sample.stamp_ns - t0_ns for sample in samples], np.int64)
    _require_increasing(times_ns)
    first = max(int(np.searchsorted(times_ns, -SPAN_NS, 'right')) - 1, 0)
    last = min(int(np.searchsorted(times_ns, 0, 'left')), len(times_ns) - 1)
    _require_covered(int(times_ns[first]), int(times_ns[last]), limits)
    window = _Window(samples[first : last + 1], times_ns[first : last + 1])
    for sample in window.samples:
        _require_valid(sample)
    _require_dense(window.times_ns, limits)
    return window


def _resample(
    window: _Window, limits: HistoryLimits
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Interpolate positions (16, 3) and orientations (16, 4)."""
    positions_m = np.array([sample.position_m for sample in window.samples])
    _require_no_jump(positions_m, window.times_ns, limits)
    orientations = normalised(np.array([s.orientation_xyzw for s in window.samples]))
    before, fraction = window.brackets()
    steps_m = positions_m[before + 1] - positions_m[before]
    resampled_m = positions_m[before] + fraction[:, None] * steps_m
    resampled = slerp(orientations[before], orientations[before + 1], fraction)
    _require_smooth(resampled_m, limits)
    _require_steady(resampled, limits)
    return resampled_m, resampled


def _choose_speed(positions_mps: float, twist_mps: float | None, limits: HistoryLimits) -> float:
    if twist_mps is not None:
        _require_agreement(positions_mps, twist_mps, limits)
    if limits.speed_source is SpeedSource.POSITIONS:
        return positions_mps
    if twist_mps is None:
        text = (
            f'no speed in the samples around t0, but the speed source is '
            f'{limits.speed_source.value!r}'
        )
        raise Refusal(Reason.HISTORY_MISSING, text)
    if limits.speed_source is SpeedSource.TWIST:
        return twist_mps
    return 0.5 * (positions_mps + twist_mps)


def _require_valid(sample: PoseSample) -> None:
    if not all(map(math.isfinite, sample.position_m)):
        text = f'position {sample.position_m} is not finite'
    elif not is_rotation(sample.orientation_xyzw):
        text = f'orientation {sample.orientation_xyzw} is not a unit quaternion'
    elif sample.speed_mps is not None and not math.isfinite(sample.speed_mps):
        text = f'speed {sample.speed_mps} is not finite'
    else:
        return
    raise Refusal(Reason.HISTORY_INVALID, f'sample of {sample.stamp_ns} ns: {text}')


def _require_increasing(times_ns: NDArray[np.int64]) -> None:
    steps_ns = np.diff(times_ns)
    if (steps_ns <= 0).any():
        i = int(np.argmax(steps_ns <= 0)) + 1
        text = f'sample {i} is {_signed_s(steps_ns[i - 1])} after the one before'
        raise Refusal(Reason.HISTORY_BACKWARD, f'{text}; stamps must increase')


def _require_covered(first_ns: int, last_ns: int, limits: HistoryLimits) -> None:
    slack_ns = limits.max_extrapolation_s * NS_PER_S
    if last_ns < -slack_ns:
        text = (
            f'the newest sample is {_s(-last_ns)} before t0; '
            f'at most {limits.max_extrapolation_s} s are extrapolated'
        )
        raise Refusal(Reason.HISTORY_EXTRAPOLATION, text)
    if first_ns > -SPAN_NS + slack_ns:
        text = (
            f'the oldest sample is at t0 {_signed_s(first_ns)}; {_s(SPAN_NS)} before t0 are needed'
        )
        raise Refusal(Reason.HISTORY_SHORT, text)


def _require_dense(times_ns: NDArray[np.int64], limits: HistoryLimits) -> None:
    gaps_ns = np.diff(times_ns)
    i = int(gaps_ns.argmax())
    if gaps_ns[i] > limits.max_gap_s * NS_PER_S:
        text = (
            f'no sample for {_s(gaps_ns[i])} from t0 {_signed_s(times_ns[i])} on; '
            f'at most {limits.max_gap_s} s'
        )
        raise Refusal(Reason.HISTORY_GAP, text)


def _require_no_jump(
    positions_m: NDArray[np.float64], times_ns: NDArray[np.int64], limits: HistoryLimits
) -> None:
    """Whether each sample can be reached from the one before."""
    with np.errstate(over='ignore'):
        distances_m = norms(np.diff(positions_m, axis=0))
    steps_s = np.diff(times_ns) / NS_PER_S
    i = int(np.argmax(distances_m - limits.max_speed_mps * steps_s))
    where = f'the sample at t0 {_signed_s(times_ns[i])}'
    _require_reachable(float(distances_m[i]), float(steps_s[i]), where, limits)


def _require_reachable(
    distance_m: float, step_s: float, where: str, limits: HistoryLimits
) -> None:
    limit_m = limits.max_speed_mps * step_s + limits.jump_margin_m
    if distance_m > limit_m:
        text = f'{distance_m:.2f} m within {step_s:.3f} s from {where}; at most {limit_m:.2f} m'
        raise Refusal(Reason.HISTORY_JUMP, text)


def _require_smooth(positions_m: NDArray[np.float64], limits: HistoryLimits) -> None:
    """
    Whether no 0.1 s pose leaves the line of its neighbours, as it does beside a jump.

    Works on the even grid, where neither rate nor jitter of the source matter, and sees jumps that
    are far below what `max_speed_mps` lets through.
    """
    bends_m = norms(np.diff(positions_m, 2, axis=0))
    i = int(bends_m.argmax())
    limit_m = limits.jump_margin_m + limits.max_accel_mps2 * _STEP_S**2
    if bends_m[i] > limit_m:
        text = (
            f'the way from pose to pose changes by {bends_m[i]:.2f} m in 0.1 s at t0 '
            f'{_signed_s(_TARGETS_NS[i + 1])}; at most {limit_m:.2f} m'
        )
        raise Refusal(Reason.HISTORY_JUMP, text)


def _require_steady(orientations: NDArray[np.float64], limits: HistoryLimits) -> None:
    turns_rad = rotation_angles(multiply(conjugate(orientations[:-1]), orientations[1:]))
    i = int(turns_rad.argmax())
    limit_rad = limits.max_turn_rate_rps * _STEP_S
    if turns_rad[i] > limit_rad:
        text = (
            f'orientation turns by {turns_rad[i]:.2f} rad in 0.1 s from t0 '
            f'{_signed_s(_TARGETS_NS[i])} on; at most {limit_rad:.2f} rad'
        )
        raise Refusal(Reason.HISTORY_JUMP, text)


def _require_agreement(positions_mps: float, twist_mps: float, limits: HistoryLimits) -> None:
    limit_mps = limits.max_speed_mismatch_mps + limits.max_speed_mismatch_ratio * abs(twist_mps)
    if abs(positions_mps - twist_mps) > limit_mps:
        text = (
            f'positions say {positions_mps:.2f} m/s at t0, the twist says {twist_mps:.2f} m/s; '
            f'at most {limit_mps:.2f} m/s apart'
        )
        raise Refusal(Reason.SPEED_MISMATCH, text)


def _s(duration_ns: int) -> str:
    return f'{duration_ns / NS_PER_S:.3f} s'


def _signed_s(duration_ns: int) -> str:
    return f'{duration_ns / NS_PER_S:+.3f} s'


def _triple(values: NDArray[np.float64]) -> tuple[float, float, float]:
    return float(values[0]), float(values[1]), float(values[2])


def _quadruple(values: NDArray[np.float64]) -> tuple[float, float, float, float]:
    return float(values[0]), float(values[1]), float(values[2]), float(values[3])
