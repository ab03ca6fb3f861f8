# SPDX-License-Identifier: Apache-2.0
"""A planner node with a scripted expert, and a peer that talks to it, on one real executor."""

from collections.abc import Callable
import time

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
from alpamayo_msgs.msg import VlmContext
from alpamayo_msgs.srv import Plan
from nav_msgs.msg import Odometry
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock
from visualization_msgs.msg import MarkerArray

from alpamayo_node.contracts import PoseSample
from alpamayo_node.plan.planner import Planner
from alpamayo_node.ros import convert
from alpamayo_node.ros.node import PlannerNode
from alpamayo_node.ros.watch import PlanWatcher
from tests.fakes.expert import EmptyStore
from tests.fakes.expert import ScriptedExpert
from tests.fakes.expert import make_context

PATIENCE_S = 10.0
S = 1_000_000_000


class Harness:
    """Starts unconfigured; `autostart` is the test's to call."""

    def __init__(self, expert: ScriptedExpert | None = None, **parameters: object) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.expert = expert or ScriptedExpert()
        self.builds = 0
        self.plans: list[PlannedTrajectory] = []
        self.rejected: list[PlannedTrajectory] = []
        self.statuses: list[PlannerStatus] = []
        self.markers: list[MarkerArray] = []
        overrides = [Parameter(name.replace('__', '.'), value=v) for name, v in parameters.items()]
        self.node = PlannerNode(
            self._make_build, context=self.context, parameter_overrides=overrides
        )
        self.peer = PlanWatcher(
            on_plan=self.plans.append,
            on_rejected=self.rejected.append,
            on_status=self.statuses.append,
            context=self.context,
        )
        self.peer.create_subscription(MarkerArray, 'markers', self.markers.append, 10)
        self.context_publisher = self.peer.create_publisher(VlmContext, 'context', 1)
        self.odometry_publisher = self.peer.create_publisher(Odometry, 'odometry', 50)
        self.clock_publisher = self.peer.create_publisher(Clock, '/clock', 10)
        self.plan_client = self.peer.create_client(Plan, 'alpamayo_planner/plan')
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.executor.add_node(self.peer)

    def _make_build(self, settings):
        self.builds += 1

        def build(should_stop, report):
            self_test = self.expert.self_test(should_stop)
            planner = Planner(
                self.expert,
                EmptyStore(),
                adjust_limits=settings.adjust,
                gate_limits=settings.gate,
            )
            return planner, self_test

        return build

    def start(self) -> None:
        self.node.start()
        self.spin_until(
            lambda: (
                self.context_publisher.get_subscription_count() == 1
                and self.node.count_subscribers('trajectory') == 1
                and self.node.count_subscribers('rejected') == 1
                and self.odometry_publisher.get_subscription_count() == 1
            )
        )

    def close(self) -> None:
        self.node.close()
        self.executor.shutdown()
        self.node.destroy_node()
        self.peer.destroy_node()
        rclpy.try_shutdown(context=self.context)

    def spin_until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, 'waited in vain'
            self.executor.spin_once(timeout_sec=0.02)

    def spin_for(self, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            self.executor.spin_once(timeout_sec=0.01)

    def announce(self, t0_ns: int | None = None, **changes: object) -> None:
        """Publish a good context with its own history, but for the changes."""
        t0_ns = time.time_ns() if t0_ns is None else t0_ns
        fields = {'t0_ns': t0_ns, 'history': straight_history(t0_ns), **changes}
        message = convert.context_to_message(make_context(**fields))
        self.context_publisher.publish(message)

    def counters(self) -> dict[str, int]:
        """Of a status that was sent after everything that happened so far."""
        n = len(self.statuses)
        self.spin_until(lambda: len(self.statuses) > n + 1)
        return {counter.name: counter.count for counter in self.statuses[-1].counters}

    def state(self) -> int:
        n = len(self.statuses)
        self.spin_until(lambda: len(self.statuses) > n + 1)
        return self.statuses[-1].state

    def reasons(self) -> list[str]:
        return [reason.code for message in self.rejected for reason in message.reasons]


def straight_history(t0_ns: int, speed_mps: float = 10.0) -> tuple[PoseSample, ...]:
    """20 Hz for 2 s up to t0, along x, at the origin at t0."""
    return tuple(
        PoseSample(
            stamp_ns=t0_ns + k * S // 20,
            position_m=(speed_mps * k / 20, 0.0, 0.0),
            orientation_xyzw=(0.0, 0.0, 0.0, 1.0),
            speed_mps=speed_mps,
        )
        for k in range(-40, 1)
    )
