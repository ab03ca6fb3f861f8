# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace
import math
import threading
import time

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
from alpamayo_msgs.msg import VlmContext
from alpamayo_msgs.srv import Plan
from nav_msgs.msg import Odometry
import numpy as np
import pytest
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock
from visualization_msgs.msg import Marker

from alpamayo_node.contracts import ContextStatus
from alpamayo_node.errors import BackendError
from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import SelfTestError
from alpamayo_node.ros import convert
from tests.fakes.expert import SHAPE
from tests.fakes.expert import GatedExpert
from tests.fakes.expert import ScriptedExpert
from tests.fakes.expert import make_context
from tests.ros.harness import Harness
from tests.ros.harness import S
from tests.ros.harness import straight_history

pytestmark = pytest.mark.ros

SUCCESS = TransitionCallbackReturn.SUCCESS
FAILURE = TransitionCallbackReturn.FAILURE


@pytest.fixture
def harness_for() -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(*args: object, **kwargs: object) -> Harness:
        made.append(Harness(*args, **kwargs))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


def raise_(error: Exception) -> None:
    raise error


def test_node_context_with_history_gets_one_valid_plan_at_its_t0(harness_for) -> None:
    harness = harness_for()
    harness.start()
    t0_ns = time.time_ns()
    harness.announce(t0_ns)
    harness.spin_until(lambda: len(harness.plans) == 1)
    (plan,) = harness.plans
    assert plan.valid
    assert not plan.reasons
    assert plan.header.stamp.sec * S + plan.header.stamp.nanosec == t0_ns
    assert plan.header.frame_id == 'map'
    assert len(plan.waypoints) == 64
    assert plan.ego_speed == pytest.approx(10.0, abs=1e-2)
    since = [w.time_from_start.sec * S + w.time_from_start.nanosec for w in plan.waypoints]
    assert since == [(i + 1) * S // 10 for i in range(64)]
    counters = harness.counters()
    assert counters['received'] == counters['planned'] == 1
    assert counters['pending'] == 0


def test_node_without_history_uses_odometry_and_its_pose_at_t0(harness_for) -> None:
    # The vehicle goes on for a second after t0: the plan must start where it was at t0.
    harness = harness_for()
    harness.start()
    t0_ns = time.time_ns() - S
    for k in range(-40, 21):
        harness.odometry_publisher.publish(odometry(t0_ns + k * S // 20, 8.0 * k / 20, 8.0))
        harness.executor.spin_once(timeout_sec=0.01)
    harness.spin_until(lambda: harness.counters().get('odometry', 0) == 61)
    harness.announce(t0_ns, history=())
    harness.spin_until(lambda: len(harness.plans) == 1)
    assert harness.plans[0].ego_pose.position.x == pytest.approx(0.0, abs=1e-9)
    assert harness.plans[0].ego_speed == pytest.approx(8.0, abs=1e-2)


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'status': ContextStatus.INCOMPLETE}, 'not_ready'),
        ({'status': ContextStatus.ABORTED}, 'not_ready'),
        ({'frame_id': 'odom'}, 'frame_mismatch'),
        ({'model_fingerprint': 'sha256:1'}, 'model_mismatch'),
        ({'prompt_fingerprint': 'other'}, 'prompt_mismatch'),
        ({'shape': replace(SHAPE, n_layers=3)}, 'shape_mismatch'),
        ({'shape': replace(SHAPE, n_rows=9000)}, 'shape_mismatch'),
        ({'history': ()}, 'history_missing'),
    ],
)
def test_node_unusable_context_is_rejected_with_its_reason(harness_for, changes, reason) -> None:
    harness = harness_for(context__prompt_fingerprints=['test'])
    harness.start()
    harness.announce(**changes)
    harness.spin_until(lambda: len(harness.rejected) == 1)
    assert harness.reasons() == [reason]
    assert not harness.rejected[0].valid
    assert not harness.rejected[0].waypoints
    harness.announce(context_id='good')
    harness.spin_until(lambda: len(harness.plans) == 1)
    counters = harness.counters()
    assert counters['received'] == 2
    assert counters['rejected'] == counters[f'rejected.{reason}'] == 1


@pytest.mark.parametrize(('offset_s', 'reason'), [(-5.5, 'too_old'), (0.9, 'from_the_future')])
def test_node_t0_away_from_the_clock_is_rejected(harness_for, offset_s, reason) -> None:
    harness = harness_for()
    harness.start()
    harness.announce(time.time_ns() + int(offset_s * S))
    harness.spin_until(lambda: len(harness.rejected) == 1)
    assert harness.reasons() == [reason]


def test_node_repeated_and_older_contexts_are_rejected(harness_for) -> None:
    harness = harness_for()
    harness.start()
    t0_ns = time.time_ns()
    harness.announce(t0_ns, generation=5)
    harness.spin_until(lambda: len(harness.plans) == 1)
    for changes in ({'generation': 5}, {'generation': 4}, {'context_id': 'b', 't0_ns': t0_ns - 1}):
        n = len(harness.rejected)
        harness.announce(**{'t0_ns': t0_ns, **changes})
        harness.spin_until(lambda n=n: len(harness.rejected) == n + 1)
    assert harness.reasons() == ['duplicate', 'duplicate', 'out_of_order']
    harness.announce(t0_ns, generation=6)
    harness.spin_until(lambda: len(harness.plans) == 2)


def test_node_plan_that_fails_the_gate_is_only_rejected(harness_for) -> None:
    harness = harness_for(ScriptedExpert(np.full((64, 2), 20.0, np.float32)))
    harness.start()
    harness.announce()
    harness.spin_until(lambda: len(harness.rejected) == 1)
    (message,) = harness.rejected
    assert not message.valid
    assert 'acceleration' in harness.reasons()
    assert len(message.waypoints) == 64
    assert not harness.plans


def test_node_non_finite_action_publishes_no_waypoint(harness_for) -> None:
    harness = harness_for(ScriptedExpert(np.full((64, 2), np.nan, np.float32)))
    harness.start()
    harness.announce()
    harness.spin_until(lambda: len(harness.rejected) == 1)
    assert harness.reasons() == ['non_finite']
    assert not harness.rejected[0].waypoints


def test_node_flood_plans_the_newest_and_counts_the_others(harness_for) -> None:
    expert = GatedExpert()
    harness = harness_for(expert)
    harness.start()
    t0_ns = time.time_ns()
    for i in range(6):
        harness.announce(t0_ns + i, context_id=f'c{i}')
        harness.spin_until(lambda i=i: harness.counters().get('received', 0) == i + 1)
    expert.gate.set()
    harness.spin_until(lambda: len(harness.plans) == 2)
    assert [plan.context_id for plan in harness.plans] == ['c0', 'c5']
    counters = harness.counters()
    assert counters['superseded'] == 4
    assert counters['received'] == counters['planned'] + counters['superseded']


def test_node_plan_that_became_too_old_meanwhile_is_rejected(harness_for) -> None:
    expert = GatedExpert()
    harness = harness_for(expert, context__max_age_s=0.5)
    harness.start()
    harness.announce()
    harness.spin_for(0.7)
    expert.gate.set()
    harness.spin_until(lambda: len(harness.rejected) == 1)
    assert harness.reasons() == ['too_old']
    assert not harness.plans


def test_node_heartbeat_goes_on_while_a_plan_runs(harness_for) -> None:
    expert = GatedExpert()
    harness = harness_for(expert, status__rate_hz=50.0)
    harness.start()
    harness.announce()
    harness.spin_until(lambda: bool(harness.statuses) and harness.statuses[-1].planning)
    n = len(harness.statuses)
    harness.spin_until(lambda: len(harness.statuses) >= n + 10)
    assert harness.statuses[-1].planning
    expert.gate.set()
    harness.spin_until(lambda: len(harness.plans) == 1)


def test_node_hung_plan_is_a_fault_and_later_contexts_are_refused(harness_for) -> None:
    expert = GatedExpert()
    harness = harness_for(expert, watchdog__plan_timeout_s=0.2)
    harness.start()
    harness.announce()
    harness.spin_until(lambda: harness.state() == PlannerStatus.STATE_FAULTED)
    harness.announce(context_id='later')
    harness.spin_until(lambda: len(harness.rejected) == 1)
    assert harness.reasons() == ['backend_failed']
    expert.gate.set()
    harness.spin_until(lambda: len(harness.rejected) == 2)
    assert harness.reasons() == ['backend_failed', 'backend_failed']
    assert not harness.plans


def test_node_hung_plan_is_answered_when_the_node_is_cleaned_up(harness_for, monkeypatch) -> None:
    monkeypatch.setattr('alpamayo_node.ros.node.CLOSE_TIMEOUT_S', 0.1)
    release = threading.Event()
    harness = harness_for(ScriptedExpert(on_sample=lambda: release.wait(20.0)))
    harness.start()
    harness.announce()
    harness.spin_until(lambda: bool(harness.statuses) and harness.statuses[-1].planning)
    harness.node.trigger_deactivate()
    harness.node.trigger_cleanup()
    counters = harness.counters()
    assert counters['received'] == counters['rejected'] == 1
    assert counters['pending'] == 0
    # What the abandoned worker says later belongs to nobody, and not to its successor.
    harness.expert = ScriptedExpert()
    harness.start()
    release.set()
    harness.announce(context_id='next')
    harness.spin_until(lambda: len(harness.plans) == 1)
    counters = harness.counters()
    assert (counters['received'], counters['planned'], counters['rejected']) == (2, 1, 1)


def test_node_backend_failure_is_a_fault_until_configured_again(harness_for) -> None:
    expert = ScriptedExpert(on_sample=lambda: raise_(BackendError('chip hung')))
    harness = harness_for(expert)
    harness.start()
    harness.announce()
    harness.spin_until(lambda: len(harness.rejected) == 1)
    harness.spin_until(lambda: harness.state() == PlannerStatus.STATE_FAULTED)
    assert 'chip hung' in harness.statuses[-1].last_error
    expert.on_sample = None
    assert harness.node.trigger_deactivate() == SUCCESS
    assert harness.node.trigger_activate() == FAILURE
    assert harness.node.trigger_cleanup() == SUCCESS
    harness.start()
    harness.announce(context_id='again')
    harness.spin_until(lambda: len(harness.plans) == 1)
    assert harness.state() == PlannerStatus.STATE_ACTIVE


def test_node_failed_self_test_stays_unconfigured_and_says_why(harness_for) -> None:
    expert = ScriptedExpert(on_self_test=lambda: raise_(SelfTestError('layer 3 is off by 0.5')))
    harness = harness_for(expert)
    harness.node.start()
    assert harness.state() == PlannerStatus.STATE_UNCONFIGURED
    assert 'layer 3 is off by 0.5' in harness.statuses[-1].last_error
    expert.on_self_test = None
    harness.start()
    assert harness.state() == PlannerStatus.STATE_ACTIVE


def test_node_every_transition_twice(harness_for) -> None:
    harness = harness_for()
    node = harness.node
    for _ in range(2):
        assert node.trigger_configure() == SUCCESS
        assert harness.state() == PlannerStatus.STATE_INACTIVE
        for _ in range(2):
            assert node.trigger_activate() == SUCCESS
            assert harness.state() == PlannerStatus.STATE_ACTIVE
            assert node.trigger_deactivate() == SUCCESS
            assert harness.state() == PlannerStatus.STATE_INACTIVE
        assert node.trigger_cleanup() == SUCCESS
        assert harness.state() == PlannerStatus.STATE_UNCONFIGURED
    assert harness.builds == 2
    assert harness.expert.is_closed
    assert node.trigger_shutdown() == SUCCESS


def test_node_inactive_hears_nothing_and_clears_the_drawings(harness_for) -> None:
    harness = harness_for()
    harness.start()
    harness.announce()
    harness.spin_until(lambda: len(harness.plans) == 1)
    harness.spin_until(lambda: bool(harness.markers))
    harness.node.trigger_deactivate()
    harness.announce(context_id='unheard')
    harness.spin_until(lambda: harness.markers[-1].markers[0].action == Marker.DELETEALL)
    harness.spin_for(0.2)
    assert harness.counters()['received'] == 1


def test_node_plan_service_repeats_and_varies_without_publishing(harness_for) -> None:
    expert = ScriptedExpert()
    harness = harness_for(expert)
    harness.start()
    harness.announce()
    harness.spin_until(lambda: len(harness.plans) == 1)
    answers = [call(harness, has_seed=True, seed=seed, n_steps=3) for seed in (0, 0, 9)]
    assert all(answer.success for answer in answers)
    assert [answer.trajectory.n_steps for answer in answers] == [3, 3, 3]
    assert answers[2].trajectory.seed == 9
    first, repeated, varied = (noise.tobytes() for noise in expert.noises[1:])
    assert first == repeated == expert.noises[0].tobytes()
    assert varied != first
    assert len(harness.plans) == 1


def test_node_plan_service_says_why_not(harness_for) -> None:
    harness = harness_for()
    harness.start()
    answer = call(harness)
    assert not answer.success
    assert 'no context' in answer.message
    harness.announce()
    harness.spin_until(lambda: len(harness.plans) == 1)
    answer = call(harness, context_id='unknown')
    assert not answer.success
    assert 'drive-1' in answer.message


def test_node_plan_service_does_not_hold_up_contexts(harness_for) -> None:
    expert = ScriptedExpert()
    harness = harness_for(expert)
    harness.start()
    harness.announce()
    harness.spin_until(lambda: len(harness.plans) == 1)
    expert.on_sample = lambda: time.sleep(0.5)
    harness.plan_client.wait_for_service(5.0)
    future = harness.plan_client.call_async(Plan.Request())
    harness.spin_for(0.1)
    harness.announce(context_id='meanwhile')
    harness.spin_until(lambda: harness.counters()['received'] == 2)
    assert not future.done()
    harness.spin_until(future.done)
    harness.spin_until(lambda: len(harness.plans) == 2)


def test_node_clock_that_jumps_back_starts_a_new_epoch(harness_for) -> None:
    expert = GatedExpert()
    harness = harness_for(expert, use_sim_time=True)
    harness.start()
    set_clock(harness, 100 * S)
    epoch = harness.statuses[-1].epoch
    harness.announce(100 * S)
    assert_begun(harness, expert)
    set_clock(harness, 50 * S)
    harness.spin_until(lambda: len(harness.rejected) == 1)
    assert harness.reasons() == ['clock_jump']
    assert harness.statuses[-1].epoch > epoch
    assert harness.statuses[-1].last_plan_context_id == ''
    expert.gate.set()
    harness.announce(50 * S)  # the same id and generation, and an older t0, of a bag played again
    harness.spin_until(lambda: len(harness.plans) == 1)
    counters = harness.counters()
    assert counters['received'] == counters['planned'] + counters['rejected']


@pytest.mark.parametrize(
    ('name', 'value', 'hint'),
    [
        ('gate__max_accel_mps2', -1.0, 'gate.max_accel_mps2'),
        ('sampling__n_steps', 0, 'sampling.n_steps'),
        ('sampling__n_steps', 'ten', 'sampling.n_steps'),
        ('backend', 'gpu', 'backend'),
        ('torch__precision', 'int4', 'torch.precision'),
        ('gate__max_acel_mps2', 5.0, 'did you mean gate.max_accel_mps2'),
        ('topics__path', 'a b', 'topics.path'),
        ('topics__status', '', 'topics.status'),
    ],
)
def test_node_wrong_parameter_is_refused_by_name(harness_for, name, value, hint) -> None:
    with pytest.raises(ConfigError, match=hint):
        Harness(**{name: value})


def test_node_integer_for_a_float_parameter_is_taken(harness_for) -> None:
    harness = harness_for(context__max_age_s=3)
    assert harness.node.get_parameter('context.max_age_s').value == 3


def test_node_parameter_change_is_checked_whole_and_only_before_configuring(harness_for) -> None:
    harness = harness_for()
    good = Parameter('sampling.n_steps', value=5)
    bad = Parameter('gate.max_reverse_m', value=-2.0)
    result = harness.node.set_parameters_atomically([good, bad])
    assert not result.successful
    assert 'gate.max_reverse_m' in result.reason
    assert harness.node.get_parameter('sampling.n_steps').value == 10
    assert harness.node.set_parameters_atomically([good]).successful
    fixed = harness.node.set_parameters([Parameter('topics.path', value='elsewhere')])
    assert not fixed[0].successful
    harness.start()
    result = harness.node.set_parameters_atomically([Parameter('sampling.n_steps', value=7)])
    assert not result.successful
    assert 'sampling.n_steps' in result.reason
    harness.announce()
    harness.spin_until(lambda: len(harness.plans) == 1)
    assert harness.plans[0].n_steps == 5


def test_node_several_samples_publish_candidates_and_the_first_valid_one(harness_for) -> None:
    harness = harness_for(sampling__n_samples=3)
    candidates: list = []
    harness.peer.create_subscription(PlannedTrajectory, 'candidates', candidates.append, 10)
    harness.start()
    harness.spin_until(lambda: harness.node.count_subscribers('candidates') == 1)
    harness.announce()
    harness.spin_until(lambda: len(harness.plans) == 1 and len(candidates) == 3)
    assert [c.sample_index for c in candidates] == [0, 1, 2]
    assert harness.plans[0].sample_index == 0
    assert harness.plans[0].sample_count == 3


def test_node_seed_in_the_context_wins(harness_for) -> None:
    harness = harness_for(sampling__seed=4)
    harness.start()
    harness.announce()
    harness.spin_until(lambda: len(harness.plans) == 1)
    harness.announce(context_id='b', seed=11)
    harness.spin_until(lambda: len(harness.plans) == 2)
    assert [plan.seed for plan in harness.plans] == [4, 11]


def test_node_garbage_in_each_field_is_refused_and_the_node_stays_active(harness_for) -> None:
    harness = harness_for()
    harness.start()
    spoils = {
        'context_id': lambda m: setattr(m, 'context_id', ''),
        'context_id ': lambda m: setattr(m, 'context_id', 'x' * 200),
        'header.stamp': lambda m: setattr(m.header.stamp, 'sec', -5),
        'nanosec': lambda m: setattr(m.header.stamp, 'nanosec', 2**32 - 1),
        'frame_id': lambda m: setattr(m.header, 'frame_id', ''),
        'status': lambda m: setattr(m, 'status', 0),
        'transport': lambda m: setattr(m, 'transport', 77),
        'n_rows': lambda m: setattr(m, 'n_rows', 0),
        'left_pad': lambda m: setattr(m, 'left_pad', 4_000_000_000),
        'rope_delta': lambda m: setattr(m, 'rope_delta', -(2**31)),
        'rope_delta ': lambda m: setattr(m, 'rope_delta', 5),
        'n_layers': lambda m: setattr(m, 'n_layers', 0),
        'dtype': lambda m: setattr(m, 'dtype', 'float8'),
        'model_fingerprint': lambda m: setattr(m, 'model_fingerprint', ''),
        'reasoning': lambda m: setattr(m, 'reasoning', 'a' * 100_000),
        'ego_history[3].pose.position': lambda m: setattr(
            m.ego_history[3].pose.position, 'x', math.nan
        ),
        'ego_history[3].pose.orientation': lambda m: setattr(
            m.ego_history[3].pose.orientation, 'w', 0.0
        ),
        'ego_history[2].speed': lambda m: setattr(m.ego_history[2], 'speed', math.inf),
    }
    for i, (field, spoil) in enumerate(spoils.items()):
        t0_ns = time.time_ns()
        message = convert.context_to_message(
            make_context(t0_ns=t0_ns, history=straight_history(t0_ns))
        )
        spoil(message)
        harness.context_publisher.publish(message)
        harness.spin_until(lambda i=i: len(harness.rejected) == i + 1)
        (reason,) = harness.rejected[-1].reasons
        assert reason.code == 'bad_message'
        assert field.strip() in reason.text
    harness.context_publisher.publish(VlmContext())
    harness.spin_until(lambda: len(harness.rejected) == len(spoils) + 1)
    harness.announce(context_id='good')
    harness.spin_until(lambda: len(harness.plans) == 1)
    assert harness.state() == PlannerStatus.STATE_ACTIVE


def test_node_bad_odometry_is_counted_by_reason(harness_for) -> None:
    harness = harness_for()
    harness.start()
    now_ns = time.time_ns()
    foreign = odometry(now_ns, 0.0, 1.0)
    foreign.header.frame_id = 'world'
    broken = odometry(now_ns, math.nan, 1.0)
    for message in (foreign, broken, odometry(now_ns, 0.0, 1.0)):
        harness.odometry_publisher.publish(message)
        harness.spin_for(0.05)
    counters = harness.counters()
    assert counters['odometry'] == 3
    assert counters['odometry.frame_mismatch'] == 1
    assert counters['odometry.bad_message'] == 1


def odometry(stamp_ns: int, x_m: float, speed_mps: float) -> Odometry:
    message = Odometry()
    message.header.stamp = convert.time_message(stamp_ns)
    message.header.frame_id, message.child_frame_id = 'map', 'base_link'
    message.pose.pose.position.x = x_m
    message.twist.twist.linear.x = speed_mps
    return message


def call(harness: Harness, **fields: object) -> Plan.Response:
    assert harness.plan_client.wait_for_service(5.0)
    future = harness.plan_client.call_async(Plan.Request(**fields))
    harness.spin_until(future.done)
    return future.result()


def set_clock(harness: Harness, now_ns: int) -> None:
    harness.spin_until(lambda: harness.clock_publisher.get_subscription_count() > 0)
    harness.clock_publisher.publish(Clock(clock=convert.time_message(now_ns)))
    harness.spin_until(lambda: harness.node.get_clock().now().nanoseconds == now_ns)
    harness.state()


def assert_begun(harness: Harness, expert: GatedExpert) -> None:
    harness.spin_until(expert.has_begun.is_set)
