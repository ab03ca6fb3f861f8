# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import math

from alpamayo_msgs.msg import VlmContext
import numpy as np
import pytest
from rclpy.serialization import serialize_message

from alpamayo_node.contracts import ContextStatus
from alpamayo_node.contracts import EgoStart
from alpamayo_node.contracts import Finding
from alpamayo_node.contracts import PoseSample
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.planner import Planner
from alpamayo_node.ros import convert
from tests.fakes.expert import EmptyStore
from tests.fakes.expert import ScriptedExpert
from tests.fakes.expert import make_context
from tests.fakes.expert import make_request
from tests.ros.harness import straight_history

pytestmark = pytest.mark.ros

MAX_CONTEXT_BYTES = 4096


def planned(request=None):
    expert = ScriptedExpert()
    planner = Planner(expert, EmptyStore(), adjust_limits=AdjustLimits(), gate_limits=GateLimits())
    (plan,) = planner.plan(request or make_request(), lambda: False)
    return plan, expert.info


@pytest.mark.parametrize(
    'changes',
    [
        {},
        {'seed': 0},
        {'seed': 2**64 - 1, 'generation': 2**64 - 1},
        {'status': ContextStatus.ABORTED},
        {'history': straight_history(1_700_000_000_000_000_000)},
        {'history': (PoseSample(5, (1.0, 2.0, 3.0), (0.0, 0.0, 0.6, 0.8), None),)},
        {'digest': 'sha256:ab', 'reasoning': 'Grüße\n“”', 't0_ns': 999_999_999},
    ],
)
def test_context_survives_the_way_through_a_message(changes) -> None:
    context = make_context(**changes)
    assert convert.context_from_message(convert.context_to_message(context)) == context


def test_context_message_with_history_and_long_reasoning_stays_small() -> None:
    # 256 tokens of reasoning are the model's limit; English takes about 5 characters a token.
    context = make_context(
        reasoning='a' * 5 * 256,
        history=straight_history(1_700_000_000_000_000_000)[:16],
        digest='sha256:' + '0' * 64,
    )
    message = convert.context_to_message(context)
    assert len(serialize_message(message)) < MAX_CONTEXT_BYTES


def test_context_left_padding_of_all_rows_is_refused() -> None:
    message = convert.context_to_message(make_context())
    message.left_pad = message.n_rows
    with pytest.raises(Refusal, match='left_pad'):
        convert.context_from_message(message)


def test_header_of_a_message_is_taken_unchecked() -> None:
    message = VlmContext(context_id='', generation=7)
    message.header.stamp.nanosec = 2**32 - 1
    header = convert.header_of(message)
    answer = convert.refusal_to_message(
        header, Refusal(Reason.BAD_MESSAGE, 'text'), age_ns=-3_500_000_000
    )
    assert answer.generation == 7
    assert not answer.valid
    assert (answer.age.sec, answer.age.nanosec) == (-4, 500_000_000)


def test_plan_waypoints_are_in_the_fixed_frame_at_the_pose_of_t0() -> None:
    # Facing along +y at (100, 200): straight ahead in the ego frame is +y in the fixed frame.
    half = math.sqrt(0.5)
    request = make_request(10.0)
    start = replace(request.start, orientation_xyzw=(0.0, 0.0, half, half))
    plan, info = planned(replace(request, start=start))
    message = convert.plan_to_message(plan, info, age_ns=1_250_000_000)
    last = message.waypoints[63]
    assert last.pose.position.x == pytest.approx(100.0 - plan.trajectory.y_m[63])
    assert last.pose.position.y == pytest.approx(200.0 + plan.trajectory.x_m[63])
    assert last.pose.position.z == pytest.approx(3.0)
    assert last.longitudinal_speed == plan.trajectory.speed_mps[63]
    assert last.acceleration == plan.trajectory.accel_mps2[63]
    assert last.heading_rate == last.longitudinal_speed * last.curvature
    assert (message.age.sec, message.age.nanosec) == (1, 250_000_000)


def test_plan_message_says_how_to_get_it_again() -> None:
    plan, info = planned(make_request(seed=2**64 - 1, n_steps=7, temperature=0.5))
    message = convert.plan_to_message(plan, info, age_ns=0)
    assert (message.seed, message.n_steps, message.temperature) == (2**64 - 1, 7, 0.5)
    assert (message.backend, message.precision) == (info.backend, info.precision)
    assert message.buffer_rounding == info.buffer_rounding
    assert message.model_fingerprint == info.model_fingerprint
    assert message.times.sample == plan.times.sample_s


def test_plan_is_valid_exactly_without_reasons() -> None:
    plan, info = planned()
    assert convert.plan_to_message(plan, info, age_ns=0).valid
    late = (Finding(Reason.TOO_OLD, 'too old'),)
    message = convert.plan_to_message(plan, info, age_ns=0, reasons=late)
    assert not message.valid
    assert message.reasons[0].code == 'too_old'


def test_plan_first_waypoint_has_the_integrated_speed() -> None:
    action = np.zeros((64, 2), np.float32)
    action[:, 0] = 3.0
    expert = ScriptedExpert(action)
    planner = Planner(expert, EmptyStore(), adjust_limits=AdjustLimits(), gate_limits=GateLimits())
    (plan,) = planner.plan(make_request(0.0), lambda: False)
    message = convert.plan_to_message(plan, expert.info, age_ns=0)
    assert message.waypoints[0].longitudinal_speed > 0.1


def test_odometry_survives_the_way_through_a_message() -> None:
    sample = PoseSample(1_500_000_001, (1.0, 2.0, 3.0), (0.0, 0.0, 0.6, 0.8), 4.5)
    message = convert.odometry_to_message(sample, 'odom', 'rear')
    assert convert.sample_from_odometry(message, 'odom', 'rear') == sample


@pytest.mark.parametrize(
    ('field', 'reason'),
    [('header', Reason.FRAME_MISMATCH), ('child', Reason.FRAME_MISMATCH)],
)
def test_odometry_in_another_frame_is_refused(field: str, reason: Reason) -> None:
    sample = PoseSample(1, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), 0.0)
    frames = ('map', 'rear') if field == 'child' else ('world', 'base_link')
    with pytest.raises(Refusal) as caught:
        convert.sample_from_odometry(
            convert.odometry_to_message(sample, *frames), 'map', 'base_link'
        )
    assert caught.value.reason is reason


def test_ego_start_is_what_the_message_repeats() -> None:
    plan, info = planned()
    start: EgoStart = plan.request.start
    message = convert.plan_to_message(plan, info, age_ns=0)
    assert message.ego_speed == start.speed_mps
    assert message.ego_speed_from_positions == start.speed_from_positions_mps
    assert message.ego_speed_from_twist == start.speed_from_twist_mps
    assert message.ego_pose.position.x == start.position_m[0]
