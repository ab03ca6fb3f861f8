# SPDX-License-Identifier: Apache-2.0
"""
Messages to contracts and back: pure functions, and the one place where field names meet.

Every field of an incoming message is checked here. What is impossible in itself is refused with
the field's name; what only the circumstances forbid (age, duplicates, identity) is `admission`'s.
"""

from dataclasses import dataclass
import math
from typing import Any

from alpamayo_msgs.msg import EgoState
from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import Reason as ReasonMsg
from alpamayo_msgs.msg import StageTimes as StageTimesMsg
from alpamayo_msgs.msg import VlmContext
from alpamayo_msgs.msg import Waypoint
from builtin_interfaces.msg import Duration
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Pose
from nav_msgs.msg import Odometry

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import ContextInfo
from alpamayo_node.contracts import ContextStatus
from alpamayo_node.contracts import EgoStart
from alpamayo_node.contracts import ExpertInfo
from alpamayo_node.contracts import Finding
from alpamayo_node.contracts import KvShape
from alpamayo_node.contracts import Plan
from alpamayo_node.contracts import PoseSample
from alpamayo_node.contracts import Transport
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.plan.frames import is_rotation
from alpamayo_node.plan.frames import waypoints_in_fixed_frame

MAX_NAME_LENGTH = 128
MAX_TEXT_LENGTH = 16_384
MAX_HISTORY_LENGTH = 4096
DTYPES = ('bfloat16', 'float32')

_STATUSES = {
    VlmContext.STATUS_READY: ContextStatus.READY,
    VlmContext.STATUS_INCOMPLETE: ContextStatus.INCOMPLETE,
    VlmContext.STATUS_ABORTED: ContextStatus.ABORTED,
}
_TRANSPORTS = {VlmContext.TRANSPORT_FILE: Transport.FILE}


def context_from_message(message: VlmContext) -> ContextInfo:
    """
    Read an announcement.

    :raises Refusal: BAD_MESSAGE, with the name of the first field that cannot be
    """
    return ContextInfo(
        context_id=_name('context_id', message.context_id),
        generation=message.generation,
        t0_ns=_stamp_ns('header.stamp', message.header.stamp),
        frame_id=_name('header.frame_id', message.header.frame_id),
        status=_choice('status', message.status, _STATUSES),
        transport=_choice('transport', message.transport, _TRANSPORTS),
        location=_text('location', message.location, 255),
        shape=_shape(message),
        model_fingerprint=_name('model_fingerprint', message.model_fingerprint),
        prompt_fingerprint=_text('prompt_fingerprint', message.prompt_fingerprint),
        digest=_text('digest', message.digest),
        seed=message.seed if message.has_seed else None,
        reasoning=_text('reasoning', message.reasoning, MAX_TEXT_LENGTH),
        history=_history(message.ego_history),
    )


def context_to_message(context: ContextInfo) -> VlmContext:
    """Write an announcement, as a text model does."""
    message = VlmContext()
    message.header.stamp = time_message(context.t0_ns)
    message.header.frame_id = context.frame_id
    message.context_id = context.context_id
    message.generation = context.generation
    message.status = _key_of(_STATUSES, context.status)
    message.transport = _key_of(_TRANSPORTS, context.transport)
    message.location = context.location
    shape = context.shape
    message.n_rows, message.left_pad = shape.n_rows, shape.left_pad
    message.rope_delta, message.n_layers = shape.rope_delta, shape.n_layers
    message.n_kv_heads, message.head_dim = shape.n_kv_heads, shape.head_dim
    message.dtype = shape.dtype
    message.model_fingerprint = context.model_fingerprint
    message.prompt_fingerprint = context.prompt_fingerprint
    message.digest = context.digest
    message.has_seed = context.seed is not None
    message.seed = context.seed or 0
    message.reasoning = context.reasoning
    message.ego_history = [_ego_state(sample) for sample in context.history]
    return message


def sample_from_odometry(message: Odometry, fixed_frame: str, ego_frame: str) -> PoseSample:
    """
    Read one odometry message.

    :raises Refusal: FRAME_MISMATCH or BAD_MESSAGE
    """
    for field, got, wanted in (
        ('header.frame_id', message.header.frame_id, fixed_frame),
        ('child_frame_id', message.child_frame_id, ego_frame),
    ):
        if got != wanted:
            text = f'odometry {field} is {got!r}, expected {wanted!r}'
            raise Refusal(Reason.FRAME_MISMATCH, text)
    speed_mps = message.twist.twist.linear.x
    return PoseSample(
        stamp_ns=_stamp_ns('odometry header.stamp', message.header.stamp),
        **_pose_fields('odometry pose', message.pose.pose),
        speed_mps=_finite('odometry twist.linear.x', speed_mps),
    )


def odometry_to_message(sample: PoseSample, fixed_frame: str, ego_frame: str) -> Odometry:
    """Write one odometry message; the twist is in the ego frame."""
    message = Odometry()
    message.header.stamp = time_message(sample.stamp_ns)
    message.header.frame_id, message.child_frame_id = fixed_frame, ego_frame
    message.pose.pose = _pose(sample.position_m, sample.orientation_xyzw)
    message.twist.twist.linear.x = sample.speed_mps or 0.0
    return message


def plan_to_message(
    plan: Plan, info: ExpertInfo, *, age_ns: int, reasons: tuple[Finding, ...] = ()
) -> PlannedTrajectory:
    """
    Write a plan, valid or not.

    :param plan: with waypoints in the ego frame at t0
    :param info: of the expert that sampled it
    :param age_ns: clock minus t0 at publication
    :param reasons: against publishing it as valid, beyond the plan's own
    :return: waypoints in the fixed frame; none where a number is not finite
    """
    request = plan.request
    reasons = plan.reasons + reasons
    message = _answer(header_of(request.context), reasons, age_ns)
    message.ego_pose = _pose(request.start.position_m, request.start.orientation_xyzw)
    message.ego_speed = request.start.speed_mps
    message.ego_speed_from_positions = request.start.speed_from_positions_mps
    message.ego_speed_from_twist = _or_nan(request.start.speed_from_twist_mps)
    if all(finding.reason is not Reason.NON_FINITE for finding in reasons):
        message.waypoints = _waypoints(plan, request.start)
    message.sample_index = plan.i_sample
    message.sample_count = request.n_samples
    message.adjustments = [_finding(finding) for finding in plan.adjustments]
    message.seed, message.n_steps = request.seed, request.n_steps
    message.temperature = request.temperature
    message.backend, message.precision = info.backend, info.precision
    message.buffer_rounding = info.buffer_rounding
    message.model_fingerprint = info.model_fingerprint
    times = plan.times
    message.times = StageTimesMsg(
        queue=times.queue_s, load=times.load_s, sample=times.sample_s, finish=times.finish_s
    )
    return message


@dataclass(frozen=True)
class AnswerHeader:
    """Which announcement is being answered; kept even of one that is refused whole."""

    context_id: str
    generation: int
    t0_ns: int
    frame_id: str


def header_of(announced: VlmContext | ContextInfo) -> AnswerHeader:
    """Take from an announcement what its answer repeats, unchecked."""
    if isinstance(announced, ContextInfo):
        t0_ns, frame_id = announced.t0_ns, announced.frame_id
    else:
        stamp = announced.header.stamp
        t0_ns, frame_id = stamp.sec * NS_PER_S + stamp.nanosec, announced.header.frame_id
    return AnswerHeader(announced.context_id, announced.generation, t0_ns, frame_id)


def refusal_to_message(
    header: AnswerHeader, refusal: Refusal, *, age_ns: int
) -> PlannedTrajectory:
    """Answer a context that was refused before planning: reasons, and no waypoints."""
    return _answer(header, (Finding(refusal.reason, refusal.text),), age_ns)


def time_message(stamp_ns: int) -> Time:
    """Write an instant."""
    return Time(sec=stamp_ns // NS_PER_S, nanosec=stamp_ns % NS_PER_S)


def _answer(header: AnswerHeader, reasons: tuple[Finding, ...], age_ns: int) -> PlannedTrajectory:
    message = PlannedTrajectory()
    message.header.stamp = time_message(header.t0_ns)
    message.header.frame_id = header.frame_id
    message.context_id, message.generation = header.context_id, header.generation
    message.valid = not reasons
    message.reasons = [_finding(finding) for finding in reasons]
    message.age = _duration(age_ns)
    return message


def _waypoints(plan: Plan, start: EgoStart) -> list[Waypoint]:
    trajectory = plan.trajectory
    positions_m, orientations = waypoints_in_fixed_frame(trajectory, start)
    columns = zip(
        trajectory.time_from_start_ns.tolist(),
        positions_m.tolist(),
        orientations.tolist(),
        trajectory.speed_mps.tolist(),
        trajectory.accel_mps2.tolist(),
        trajectory.curvature_1pm.tolist(),
        trajectory.heading_rate_rps.tolist(),
        strict=True,
    )
    return [
        Waypoint(
            time_from_start=_duration(since_ns),
            pose=_pose(position_m, orientation),
            longitudinal_speed=speed_mps,
            acceleration=accel_mps2,
            curvature=curvature_1pm,
            heading_rate=rate_rps,
        )
        for since_ns, position_m, orientation, speed_mps, accel_mps2, curvature_1pm, rate_rps in (
            columns
        )
    ]


def _finding(finding: Finding) -> ReasonMsg:
    return ReasonMsg(code=str(finding.reason), text=finding.text)


def _duration(duration_ns: int) -> Duration:
    return Duration(sec=duration_ns // NS_PER_S, nanosec=duration_ns % NS_PER_S)


def _pose(position_m: Any, orientation_xyzw: Any) -> Pose:
    pose = Pose()
    pose.position.x, pose.position.y, pose.position.z = position_m
    q = pose.orientation
    q.x, q.y, q.z, q.w = orientation_xyzw
    return pose


def _ego_state(sample: PoseSample) -> EgoState:
    return EgoState(
        stamp=time_message(sample.stamp_ns),
        pose=_pose(sample.position_m, sample.orientation_xyzw),
        speed=_or_nan(sample.speed_mps),
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _shape(message: VlmContext) -> KvShape:
    for field in ('n_rows', 'n_layers', 'n_kv_heads', 'head_dim'):
        if getattr(message, field) == 0:
            raise _bad(field, 0, 'must be at least 1')
    if message.left_pad >= message.n_rows:
        raise _bad('left_pad', message.left_pad, f'must be below n_rows ({message.n_rows})')
    if message.rope_delta > 0:
        raise _bad('rope_delta', message.rope_delta, 'must be 0 or negative')
    if message.n_rows + message.rope_delta < 0:
        raise _bad('rope_delta', message.rope_delta, f'must be at least -{message.n_rows}')
    if message.dtype not in DTYPES:
        raise _bad('dtype', message.dtype, f'must be one of {", ".join(DTYPES)}')
    return KvShape(
        n_layers=message.n_layers,
        n_kv_heads=message.n_kv_heads,
        head_dim=message.head_dim,
        n_rows=message.n_rows,
        left_pad=message.left_pad,
        rope_delta=message.rope_delta,
        dtype=message.dtype,
    )


def _history(states: list[EgoState]) -> tuple[PoseSample, ...]:
    if len(states) > MAX_HISTORY_LENGTH:
        raise _bad('ego_history', f'{len(states)} states', f'at most {MAX_HISTORY_LENGTH}')
    return tuple(
        PoseSample(
            stamp_ns=_stamp_ns(f'ego_history[{i}].stamp', state.stamp),
            **_pose_fields(f'ego_history[{i}].pose', state.pose),
            speed_mps=None
            if math.isnan(state.speed)
            else _finite(f'ego_history[{i}].speed', state.speed),
        )
        for i, state in enumerate(states)
    )


def _pose_fields(field: str, pose: Pose) -> dict[str, Any]:
    position = (pose.position.x, pose.position.y, pose.position.z)
    q = pose.orientation
    orientation = (q.x, q.y, q.z, q.w)
    if not all(map(math.isfinite, position)):
        raise _bad(f'{field}.position', position, 'must be finite')
    if not is_rotation(orientation):
        raise _bad(f'{field}.orientation', orientation, 'must be a unit quaternion')
    return {'position_m': position, 'orientation_xyzw': orientation}


def _stamp_ns(field: str, stamp: Time) -> int:
    if stamp.nanosec >= NS_PER_S:
        raise _bad(f'{field}.nanosec', stamp.nanosec, 'must be below 1000000000')
    stamp_ns = int(stamp.sec) * NS_PER_S + int(stamp.nanosec)
    if stamp_ns <= 0:
        raise _bad(field, stamp_ns, 'must be set, and after 1970')
    return stamp_ns


def _finite(field: str, value: float) -> float:
    if not math.isfinite(value):
        raise _bad(field, value, 'must be finite')
    return value


def _name(field: str, value: str) -> str:
    if not value:
        raise _bad(field, value, 'must not be empty')
    return _text(field, value)


def _text(field: str, value: str, max_length: int = MAX_NAME_LENGTH) -> str:
    if len(value) > max_length:
        raise _bad(field, f'{value[:20]}…', f'at most {max_length} characters, got {len(value)}')
    return value


def _choice[T](field: str, value: int, choices: dict[int, T]) -> T:
    if value not in choices:
        raise _bad(field, value, f'must be one of {", ".join(map(str, choices))}')
    return choices[value]


def _key_of[T](choices: dict[int, T], value: T) -> int:
    return next(key for key, choice in choices.items() if choice is value)


def _bad(field: str, value: object, rule: str) -> Refusal:
    return Refusal(Reason.BAD_MESSAGE, f'{field} = {value!r}: {rule}')
