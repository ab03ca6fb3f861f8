# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import os
import signal
import time

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
from alpamayo_msgs.msg import VlmContext
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from lifecycle_msgs.srv import GetState
import pytest

from alpamayo_node.model.context_file import read_context_info
from alpamayo_node.plan.motion import Motion
from alpamayo_node.plan.motion import MotionKind
from tests.system.command_line import command_line_plan
from tests.system.processes import Scene

pytestmark = [pytest.mark.ros, pytest.mark.slow]

ACTIVE = PlannerStatus.STATE_ACTIVE


@pytest.mark.parametrize('send_history', [True, False])
def test_two_processes_every_context_is_planned_like_the_command_line_does(
    scene: Scene, send_history: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.stand_in(count=6, send_history=send_history)
    scene.listener.until(lambda: bool(scene.listener.odometry))  # so that we hear all of it, too
    scene.planner()
    scene.listener.until(lambda: len(scene.listener.plans) + len(scene.listener.rejected) == 6)
    assert not scene.listener.rejected
    announced = {message.context_id: message for message in scene.listener.contexts}
    assert len(announced) == 6
    for plan in scene.listener.plans:
        assert plan.valid
        assert_bits_equal(plan, command_line_plan(scene, announced[plan.context_id], capsys))
    counters = scene.listener.counters()
    assert counters['received'] == counters['planned'] == 6


def test_two_processes_stand_in_killed_leaves_the_planner_active(scene: Scene) -> None:
    scene.planner()
    first = scene.stand_in()
    scene.listener.until(lambda: len(scene.listener.plans) >= 2)
    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert scene.listener.fresh_status().state == ACTIVE
    n = len(scene.listener.plans)
    second = scene.stand_in(count=3)
    scene.listener.until(lambda: len(scene.listener.plans) >= n + 3)
    assert second.wait() == 0
    counters = scene.listener.counters()
    assert counters['received'] == counters['planned'] + counters.get('rejected', 0)


def test_two_processes_damaged_context_files_are_refused_one_by_one(scene: Scene) -> None:
    scene.planner()
    scene.listener.until_state(ACTIVE)
    good = scene.contexts / 'drive-0.safetensors'
    whole = good.read_bytes()
    (scene.contexts / 'cut.safetensors').write_bytes(whole[: len(whole) // 2])
    (scene.contexts / 'noise.safetensors').write_bytes(os.urandom(5000))
    (scene.contexts / 'empty.safetensors').write_bytes(b'')
    (scene.contexts / 'link.safetensors').symlink_to(good)
    (scene.contexts / 'folder.safetensors').mkdir()
    os.mkfifo(scene.contexts / 'fifo.safetensors')
    locations = [f'{n}.safetensors' for n in ('cut', 'noise', 'empty', 'link', 'folder', 'fifo')]
    locations += ['absent.safetensors', '../contexts/drive-0.safetensors', str(good), '', '..']
    for i, location in enumerate(locations):
        announce(scene, f'bad-{i}', location=location)
        scene.listener.until(lambda i=i: len(scene.listener.rejected) == i + 1)
        (reason,) = scene.listener.rejected[-1].reasons
        assert reason.code == 'context_unreadable', (location, reason)
    announce(scene, 'wrong', location='drive-1.safetensors')  # announced with drive-0's extent
    scene.listener.until(lambda: len(scene.listener.rejected) == len(locations) + 1)
    assert scene.listener.rejected[-1].reasons[0].code == 'shape_mismatch'
    announce(scene, 'digest', digest='sha256:00')
    scene.listener.until(lambda: len(scene.listener.rejected) == len(locations) + 2)
    assert scene.listener.rejected[-1].reasons[0].code == 'digest_mismatch'
    announce(scene, 'good')
    scene.listener.until(lambda: len(scene.listener.plans) == 1)
    assert scene.listener.fresh_status().state == ACTIVE


def test_two_processes_garbage_messages_leave_the_planner_active(scene: Scene) -> None:
    scene.planner()
    scene.listener.until_state(ACTIVE)
    for i in range(5):
        message = VlmContext(context_id=f'g{i}', status=i, transport=255 - i, n_rows=2**32 - 1)
        scene.listener.publisher.publish(message)
        scene.listener.until(lambda i=i: len(scene.listener.rejected) == i + 1)
    announce(scene, 'good')
    scene.listener.until(lambda: len(scene.listener.plans) == 1)
    counters = scene.listener.counters()
    assert counters['rejected.bad_message'] == 5
    assert counters['received'] == 6


def test_two_processes_bag_that_starts_again_is_planned_again_alike(scene: Scene) -> None:
    scene.planner(use_sim_time=True)
    runs: list[list[PlannedTrajectory]] = []
    for _ in range(2):
        n = len(scene.listener.plans)
        stand_in = scene.stand_in(count=3, publish_clock=True, latency_s=0.5, send_history=True)
        scene.listener.until(lambda child=stand_in: child.process.poll() == 0)
        scene.listener.until(lambda n=n: len(scene.listener.plans) == n + 3)
        runs.append(scene.listener.plans[n:])
    status = scene.listener.fresh_status()
    assert status.state == ACTIVE
    assert status.epoch >= 1
    assert not [m for m in scene.listener.rejected if m.reasons[0].code == 'out_of_order']
    assert [p.context_id for p in runs[0]] == [p.context_id for p in runs[1]]


def test_two_processes_simulated_clock_at_another_rate(scene: Scene) -> None:
    scene.planner(use_sim_time=True)
    stand_in = scene.stand_in(count=3, publish_clock=True, clock_rate=4.0, send_history=True)
    scene.listener.until(lambda: stand_in.process.poll() == 0)
    scene.listener.until(lambda: len(scene.listener.plans) == 3)


def test_two_processes_remapped_topics_and_a_parameter_file(scene: Scene) -> None:
    file = scene.tmp_path / 'mine.yaml'
    file.write_text('/**:\n  ros__parameters:\n    sampling: {seed: 77, n_steps: 4}\n')
    scene.planner('-r', 'trajectory:=plan/out', '-r', '__node:=other', '--params-file', str(file))
    heard: list[PlannedTrajectory] = []
    scene.listener.node.create_subscription(PlannedTrajectory, 'plan/out', heard.append, 10)
    scene.listener.until_state(ACTIVE)
    scene.listener.until(lambda: scene.listener.node.count_publishers('plan/out') == 1)
    scene.listener.until(lambda: announce(scene, f'c{time.time_ns()}') or bool(heard))
    assert heard[0].seed == 77
    assert heard[0].n_steps == 4
    assert ('other', f'/{scene.namespace}') in scene.listener.node.get_node_names_and_namespaces()


def test_two_processes_lifecycle_from_outside(scene: Scene) -> None:
    scene.planner(autostart=False)
    change, get = (
        scene.listener.node.create_client(kind, f'alpamayo_planner/{name}')
        for kind, name in ((ChangeState, 'change_state'), (GetState, 'get_state'))
    )
    assert change.wait_for_service(30.0)

    def transition(transition_id: int) -> bool:
        request = ChangeState.Request(transition=Transition(id=transition_id))
        future = change.call_async(request)
        scene.listener.until(future.done)
        return future.result().success

    def label() -> str:
        future = get.call_async(GetState.Request())
        scene.listener.until(future.done)
        return future.result().current_state.label

    for _ in range(2):
        assert label() == 'unconfigured'
        assert not transition(Transition.TRANSITION_ACTIVATE)
        assert transition(Transition.TRANSITION_CONFIGURE)
        assert label() == 'inactive'
        assert transition(Transition.TRANSITION_ACTIVATE)
        announce(scene, f'c{time.time_ns()}')
        scene.listener.until_state(ACTIVE)
        assert not transition(Transition.TRANSITION_CONFIGURE)
        assert transition(Transition.TRANSITION_DEACTIVATE)
        assert transition(Transition.TRANSITION_CLEANUP)
    scene.listener.until_state(PlannerStatus.STATE_UNCONFIGURED)


def test_two_processes_missing_checkpoint_stays_up_and_says_so(scene: Scene) -> None:
    planner = scene.planner(checkpoint__directory=scene.tmp_path / 'nowhere')
    scene.listener.until(lambda: bool(scene.listener.statuses))
    scene.listener.until(lambda: 'checkpoint.directory' in scene.listener.statuses[-1].last_error)
    assert scene.listener.statuses[-1].state == PlannerStatus.STATE_UNCONFIGURED
    assert planner.process.poll() is None


@pytest.mark.parametrize(
    ('parameters', 'named'),
    [
        ({'gate__max_accel_mps2': -3.0}, 'gate.max_accel_mps2 = -3.0'),
        ({'sampling__n_stesp': 5}, 'did you mean sampling.n_steps'),
    ],
)
def test_two_processes_wrong_parameter_ends_with_one_line(
    scene: Scene, parameters: dict[str, object], named: str
) -> None:
    planner = scene.planner(**parameters)
    assert planner.wait() == 2
    assert named in planner.output
    assert 'Traceback' not in planner.output


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('delay_s', [0.4, 1.0, 1.8, 2.6])
def test_two_processes_signal_while_starting_ends_quietly(
    scene: Scene, number: signal.Signals, delay_s: float
) -> None:
    planner = scene.planner()
    time.sleep(delay_s)
    planner.signal(number)
    assert planner.wait() == 0, planner.output
    assert 'Traceback' not in planner.output


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('times', [1, 2])
def test_two_processes_signal_while_planning_ends_in_order(
    scene: Scene, number: signal.Signals, times: int
) -> None:
    planner = scene.planner(sampling__n_samples=64, sampling__n_steps=100)
    scene.listener.until_state(ACTIVE)
    announce(scene, 'long')
    scene.listener.until(lambda: scene.listener.statuses[-1].planning)
    for _ in range(times):
        planner.signal(number)
    assert planner.wait() == 0, planner.output
    assert 'Traceback' not in planner.output


def test_two_processes_signal_to_the_stand_in_ends_quietly(scene: Scene) -> None:
    stand_in = scene.stand_in()
    scene.listener.until(lambda: bool(scene.listener.odometry))
    stand_in.signal(signal.SIGINT)
    assert stand_in.wait() == 0
    assert 'Traceback' not in stand_in.output


def test_two_processes_heartbeat_keeps_its_rate_while_planning(scene: Scene) -> None:
    scene.planner(
        status__rate_hz=20.0,
        sampling__n_samples=16,
        sampling__n_steps=50,
        context__max_age_s=6.4,
        watchdog__plan_timeout_s=300.0,
    )
    listener = scene.listener
    listener.until_state(ACTIVE)
    n_idle = len(listener.statuses)
    listener.until(lambda: len(listener.statuses) >= n_idle + 20)
    idle = listener.statuses[n_idle:]
    announce(scene, 'long')
    listener.until(lambda: listener.statuses[-1].planning)
    listener.until(lambda: not listener.statuses[-1].planning, timeout_s=200.0)
    busy = [status for status in listener.statuses if status.planning]
    assert len(busy) > 5
    assert period_s(busy) < 3 * period_s(idle)


def test_two_processes_heartbeat_goes_on_while_weights_load(scene: Scene) -> None:
    scene.planner(status__rate_hz=100.0, autostart=False)
    change = scene.listener.node.create_client(ChangeState, 'alpamayo_planner/change_state')
    assert change.wait_for_service(30.0)
    # Heard before it loads: finding each other takes longer than loading a model this small.
    scene.listener.until_state(PlannerStatus.STATE_UNCONFIGURED)
    request = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))
    change.call_async(request)
    scene.listener.until_state(PlannerStatus.STATE_INACTIVE)
    states = [status.state for status in scene.listener.statuses]
    assert states.count(PlannerStatus.STATE_CONFIGURING) > 1


def period_s(statuses: list[PlannerStatus]) -> float:
    stamps = [status.header.stamp for status in statuses]
    spread_s = stamps[-1].sec - stamps[0].sec + (stamps[-1].nanosec - stamps[0].nanosec) * 1e-9
    return spread_s / (len(stamps) - 1)


def announce(scene: Scene, context_id: str, **changes: object) -> None:
    """Announce the first context file, now, with a history of its own."""
    stored = read_context_info(scene.contexts / 'drive-0.safetensors')
    t0_ns = time.time_ns()
    history = Motion(MotionKind.CIRCLE, 8.0).history(t0_ns, t0_ns, 20.0)
    context = replace(stored, context_id=context_id, t0_ns=t0_ns, history=history, **changes)
    scene.listener.announce(context)


def assert_bits_equal(message: PlannedTrajectory, plan: dict) -> None:
    assert message.ego_speed == plan['start']['speed_mps']
    assert xyz(message.ego_pose.position) == plan['start']['position_m']
    assert len(message.waypoints) == len(plan['waypoints']) == 64
    for waypoint, expected in zip(message.waypoints, plan['waypoints'], strict=True):
        since = waypoint.time_from_start
        assert since.sec * 10**9 + since.nanosec == expected['time_from_start_ns']
        assert xyz(waypoint.pose.position) == expected['position_m']
        q = waypoint.pose.orientation
        assert [q.x, q.y, q.z, q.w] == expected['orientation_xyzw']
        assert waypoint.longitudinal_speed == expected['speed_mps']
        assert waypoint.acceleration == expected['accel_mps2']
        assert waypoint.curvature == expected['curvature_1pm']
        assert waypoint.heading_rate == expected['heading_rate_rps']


def xyz(point: object) -> list[float]:
    return [point.x, point.y, point.z]
