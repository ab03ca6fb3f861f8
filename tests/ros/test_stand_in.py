# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from collections.abc import Iterator
import math
from pathlib import Path
import time
from types import SimpleNamespace

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
from alpamayo_msgs.msg import VlmContext
from nav_msgs.msg import Odometry
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import ContextInfo
from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.plan.history import HistoryLimits
from alpamayo_node.plan.history import ego_start
from alpamayo_node.plan.motion import Motion
from alpamayo_node.plan.motion import MotionKind
from alpamayo_node.ros import convert
from alpamayo_node.ros import stand_in
from alpamayo_node.ros.process import EndFlag
from alpamayo_node.ros.stand_in import LEAD_S
from alpamayo_node.ros.stand_in import SIM_START_NS
from alpamayo_node.ros.stand_in import StandInNode
from tests.fakes.expert import make_context

pytestmark = pytest.mark.ros

PATIENCE_S = 10.0
FAST = {'publish_clock': True, 'clock_rate': 10.0, 'rate_hz': 50.0, 'odometry_rate_hz': 200.0}
"""Five seconds of driving in half a second, so that no test waits for a history."""


def read_info(path: Path) -> ContextInfo:
    if path.stem == 'broken':
        raise Refusal(Reason.BAD_MESSAGE, f'{path.name}: cut short')
    return make_context(context_id='of the file', location=path.name)


def digest_of(path: Path) -> str:
    return f'sha256:{path.stem}'


class Stage:
    """A stand-in, and a peer that hears it and speaks as a planner does."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ('a', 'b')) -> None:
        self.folder = folder
        for name in names:
            (folder / f'{name}.safetensors').touch()
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.peer = rclpy.create_node('peer', context=self.context)
        self.executor.add_node(self.peer)
        self.contexts: list[VlmContext] = []
        self.odometry: list[Odometry] = []
        self.clocks: list[Clock] = []
        for kind, topic, heard in (
            (VlmContext, 'context', self.contexts),
            (Odometry, 'odometry', self.odometry),
            (Clock, '/clock', self.clocks),
        ):
            self.peer.create_subscription(kind, topic, heard.append, 1000)
        self.status = self.peer.create_publisher(PlannerStatus, 'status', 10)
        self.answers = {
            topic: self.peer.create_publisher(PlannedTrajectory, topic, 10)
            for topic in ('trajectory', 'rejected')
        }
        self.end = EndFlag()
        self.node: StandInNode | None = None

    def play(self, **parameters: object) -> StandInNode:
        values = {'context.directory': str(self.folder)}
        values |= {name.replace('__', '.'): value for name, value in parameters.items()}
        self.node = StandInNode(
            read_info,
            digest_of,
            self.end,
            context=self.context,
            parameter_overrides=[Parameter(name, value=v) for name, v in values.items()],
        )
        self.executor.add_node(self.node)
        self.until(lambda: bool(self.odometry) and self.status.get_subscription_count() == 1)
        return self.node

    def say_state(self, state: int) -> None:
        self.status.publish(PlannerStatus(state=state))

    def answer(self, context_id: str, topic: str = 'trajectory') -> None:
        self.answers[topic].publish(PlannedTrajectory(context_id=context_id))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, 'waited in vain'
            self.executor.spin_once(timeout_sec=0.02)

    def spin_for(self, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            self.executor.spin_once(timeout_sec=0.01)

    def close(self) -> None:
        self.executor.shutdown()
        if self.node:
            self.node.close()
            self.node.destroy_node()
        self.peer.destroy_node()
        rclpy.try_shutdown(context=self.context)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def stamp_ns(message: VlmContext | Odometry) -> int:
    return message.header.stamp.sec * NS_PER_S + message.header.stamp.nanosec


def test_stand_in_announces_nothing_before_a_planner_has_been_active_long_enough(
    stage: Stage,
) -> None:
    stage.play(**FAST)
    stage.say_state(PlannerStatus.STATE_CONFIGURING)
    stage.spin_for(0.3)  # three seconds of driving
    assert not stage.contexts
    active_from_ns = stamp_ns(stage.odometry[-1])
    while not stage.contexts:  # a heartbeat that comes again changes nothing
        stage.say_state(PlannerStatus.STATE_ACTIVE)
        stage.spin_for(0.05)
        assert stamp_ns(stage.odometry[-1]) < active_from_ns + 60 * NS_PER_S
    assert stamp_ns(stage.contexts[0]) >= active_from_ns + LEAD_S * NS_PER_S


def test_stand_in_planner_that_was_away_gets_a_whole_history_again(stage: Stage) -> None:
    stage.play(**FAST)
    stage.say_state(PlannerStatus.STATE_ACTIVE)
    stage.until(lambda: bool(stage.contexts))
    stage.say_state(PlannerStatus.STATE_INACTIVE)
    stage.spin_for(0.1)
    stage.contexts.clear()
    back_ns = stamp_ns(stage.odometry[-1])
    stage.say_state(PlannerStatus.STATE_ACTIVE)
    stage.until(lambda: bool(stage.contexts))
    assert stamp_ns(stage.contexts[0]) >= back_ns + LEAD_S * NS_PER_S


def test_stand_in_announces_every_file_in_turn_under_fresh_ids(tmp_path: Path) -> None:
    stage = Stage(tmp_path, ('b', 'a', 'broken', 'c'))
    try:
        stage.play(**FAST, frames__fixed='odom')
        stage.say_state(PlannerStatus.STATE_ACTIVE)
        stage.until(lambda: len(stage.contexts) >= 7)
    finally:
        stage.close()
    names = [message.location for message in stage.contexts[:7]]
    assert names == [f'{name}.safetensors' for name in 'abcabca']
    assert [m.digest for m in stage.contexts[:2]] == ['sha256:a', 'sha256:b']
    assert len({message.context_id for message in stage.contexts}) == len(stage.contexts)
    stamps = [stamp_ns(message) for message in stage.contexts]
    assert stamps == sorted(set(stamps))
    assert {message.header.frame_id for message in stage.contexts} == {'odom'}


def test_stand_in_t0_lies_back_by_the_latency(stage: Stage) -> None:
    stage.play(latency_s=0.5, rate_hz=50.0)
    begin_ns = time.time_ns()
    stage.say_state(PlannerStatus.STATE_ACTIVE)
    stage.until(lambda: bool(stage.contexts))
    announced_ns = stamp_ns(stage.contexts[0]) + NS_PER_S // 2
    assert begin_ns + (LEAD_S + 0.5) * NS_PER_S <= announced_ns <= time.time_ns()


@pytest.mark.parametrize('kind', list(MotionKind))
def test_stand_in_odometry_gives_the_history_that_it_can_also_send(
    stage: Stage, kind: MotionKind
) -> None:
    stage.play(**FAST, send_history=True, motion=kind.value, speed_mps=9.0, radius_m=40.0)
    stage.say_state(PlannerStatus.STATE_ACTIVE)
    stage.until(lambda: bool(stage.contexts))
    context = convert.context_from_message(stage.contexts[0])
    t0_ns, limits = context.t0_ns, HistoryLimits()
    heard = [convert.sample_from_odometry(m, 'map', 'base_link') for m in stage.odometry]
    before = [sample for sample in heard if sample.stamp_ns >= t0_ns - 2 * NS_PER_S]
    sent = ego_start(context.history, t0_ns, 'map', limits)
    driven = ego_start(before, t0_ns, 'map', limits)
    x_m, y_m, _, speed_mps = Motion(kind, 9.0, 40.0).at((t0_ns - SIM_START_NS) / NS_PER_S)
    assert sent.position_m == pytest.approx((x_m, y_m, 0.0), abs=1e-9)
    assert sent.speed_mps == pytest.approx(speed_mps, abs=0.05)
    # Linear between odometry samples of a twentieth second: 9 m/s, 40 m, sagitta below 1 mm.
    assert driven.position_m == pytest.approx(sent.position_m, abs=2e-3)
    assert driven.speed_mps == pytest.approx(sent.speed_mps, abs=0.05)


def test_stand_in_leaves_out_what_it_is_not_asked_for(stage: Stage) -> None:
    stage.play(rate_hz=50.0, send_digest=False)
    stage.say_state(PlannerStatus.STATE_ACTIVE)
    stage.until(lambda: bool(stage.contexts))
    assert stage.contexts[0].digest == ''
    assert len(stage.contexts[0].ego_history) == 0
    assert not stage.clocks


def test_stand_in_clock_runs_at_its_rate_and_stamps_the_odometry(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = SimpleNamespace(monotonic=lambda: 100.0, time_ns=time.time_ns)
    monkeypatch.setattr(stand_in, 'time', steady)
    stage.play(publish_clock=True, clock_rate=2.5)
    assert stamp_ns(stage.odometry[0]) == SIM_START_NS
    steady.monotonic = lambda: 102.0
    stage.until(lambda: stamp_ns(stage.odometry[-1]) > SIM_START_NS)
    assert stamp_ns(stage.odometry[-1]) == SIM_START_NS + 5 * NS_PER_S
    stage.until(lambda: stage.clocks[-1].clock.sec == stage.odometry[-1].header.stamp.sec)


@pytest.mark.parametrize('topic', ['trajectory', 'rejected'])
def test_stand_in_waits_for_the_answer_to_its_own_context(stage: Stage, topic: str) -> None:
    stage.play(**FAST, wait_for_plan=True, wait_timeout_s=10 * PATIENCE_S)
    stage.say_state(PlannerStatus.STATE_ACTIVE)
    stage.until(lambda: bool(stage.contexts))
    stage.answer('of someone else', topic)
    stage.spin_for(0.2)
    assert len(stage.contexts) == 1
    stage.answer(stage.contexts[0].context_id, topic)
    stage.until(lambda: len(stage.contexts) == 2)
    stage.answer(stage.contexts[0].context_id, topic)  # again: it was asked for once
    stage.spin_for(0.2)
    assert len(stage.contexts) == 2


def test_stand_in_lost_answer_delays_one_context_only(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = SimpleNamespace(monotonic=lambda: 100.0, time_ns=time.time_ns)
    monkeypatch.setattr(stand_in, 'time', steady)
    stage.play(rate_hz=100.0, wait_for_plan=True, wait_timeout_s=4.0)
    stage.say_state(PlannerStatus.STATE_ACTIVE)
    stage.spin_for(0.1)
    steady.monotonic = lambda: 110.0
    stage.until(lambda: len(stage.contexts) == 1)
    steady.monotonic = lambda: 113.9
    stage.spin_for(0.1)
    assert len(stage.contexts) == 1
    steady.monotonic = lambda: 114.1
    stage.until(lambda: len(stage.contexts) == 2)
    # Time stands from here on: the next one follows from the answer alone.
    stage.answer(stage.contexts[1].context_id)
    stage.until(lambda: len(stage.contexts) == 3)


@pytest.mark.parametrize('wait_for_plan', [True, False])
def test_stand_in_ends_after_its_count(stage: Stage, wait_for_plan: bool) -> None:
    stage.play(**FAST, count=2, wait_for_plan=wait_for_plan)
    stage.say_state(PlannerStatus.STATE_ACTIVE)
    for n in (1, 2):
        stage.until(lambda n=n: len(stage.contexts) >= n)
        if wait_for_plan:
            stage.spin_for(0.1)
            assert not stage.end.is_set()
            stage.answer(stage.contexts[-1].context_id)
    stage.until(stage.end.is_set)
    stage.spin_for(0.1)
    assert len(stage.contexts) == 2


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('context.directory', ''),
        ('context.directory', '/nowhere'),
        ('rate_hz', 0.0),
        ('rate_hz', 'often'),
        ('count', -1),
        ('motion', 'sideways'),
        ('speed_mps', math.inf),
        ('clock_rate', 0.0),
        ('frames.fixed', 3),
    ],
)
def test_stand_in_impossible_parameter_is_refused_by_name(
    stage: Stage, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stage.folder)  # where files would be found, were no folder a folder
    with pytest.raises(ConfigError) as refusal:
        stage.play(**{name: value})
    assert (refusal.value.field, refusal.value.value) == (name, value)


def test_stand_in_folder_without_usable_file_is_refused(tmp_path: Path) -> None:
    stage = Stage(tmp_path, ('broken',))
    try:
        with pytest.raises(ConfigError, match='holds no usable context file'):
            stage.play()
    finally:
        stage.close()
