# SPDX-License-Identifier: Apache-2.0
"""
Stand in for a text model and a vehicle: announce context files, and drive.

Odometry is published from the start; contexts follow once a planner has been active for as long as
a history needs.
Each announcement gets a fresh id and t0 = now - `latency_s`, as if the text model had needed that
long. The vehicle's motion is a pure function of time (`plan.motion`).

Time is a steady clock's, laid over the wall clock at start, or, with `publish_clock`, a simulated
clock that this node publishes on /clock and that runs `clock_rate` times as fast.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
import time
import traceback
from typing import Any

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
from alpamayo_msgs.msg import VlmContext
from nav_msgs.msg import Odometry
from rclpy.clock import Clock
from rclpy.clock import ClockType
from rclpy.duration import Duration
from rclpy.node import Node
from rosgraph_msgs.msg import Clock as ClockMsg

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import ContextInfo
from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import Refusal
from alpamayo_node.plan.motion import Motion
from alpamayo_node.plan.motion import MotionKind
from alpamayo_node.ros import convert
from alpamayo_node.ros import qos
from alpamayo_node.ros.declare import declare
from alpamayo_node.ros.params import Parameter
from alpamayo_node.ros.process import EndFlag

LEAD_S = 2.0
"""For which a planner has been active before the first t0: a history's 1.5 s, and a margin."""
ACK_TIMEOUT_S = 2.0
SIM_START_NS = 1_000 * NS_PER_S

TABLE: tuple[Parameter, ...] = (
    Parameter('context.directory', '', 'Folder of the context files; all of them, by name.'),
    Parameter('rate_hz', 2.0, 'Announcements per second.', 'Hz', 0.01, 200.0),
    Parameter('count', 0, 'Announcements before the process ends; 0: no end.', '', 0, 10**9),
    Parameter('latency_s', 0.2, 'Age of t0 when a context is announced.', 's', 0.0, 10.0),
    Parameter('wait_for_plan', False, 'Announce only after the last answer came.'),  # noqa: FBT003
    Parameter('wait_timeout_s', 10.0, 'After which an answer is not waited for.', 's', 0.1, 600.0),
    Parameter(
        'motion', 'circle', 'Of the vehicle.', choices=tuple(kind.value for kind in MotionKind)
    ),
    Parameter('speed_mps', 8.0, 'Of the vehicle.', 'm/s', 0.0, 60.0),
    Parameter('radius_m', 60.0, 'Of the circle.', 'm', 1.0, 10_000.0),
    Parameter('odometry_rate_hz', 50.0, 'Odometry messages per second.', 'Hz', 1.0, 500.0),
    Parameter('send_history', False, 'Send ego history along with each context.'),  # noqa: FBT003
    Parameter('send_digest', True, 'Announce the digest of each file.'),  # noqa: FBT003
    Parameter('publish_clock', False, 'Publish simulated time on /clock.'),  # noqa: FBT003
    Parameter('clock_rate', 1.0, 'Simulated seconds per second.', '', 0.01, 100.0),
    Parameter('frames.fixed', 'map', 'Frame of odometry and contexts.'),
    Parameter('frames.ego', 'base_link', 'Child frame of odometry.'),
)


class StandInNode(Node):
    """Publishes `context` and `odometry`, and `/clock` if asked to."""

    def __init__(
        self,
        read_info: Callable[[Path], ContextInfo],
        digest_of: Callable[[Path], str],
        stop: EndFlag,
        **node_options: Any,
    ) -> None:
        """
        :param read_info: reads what a context file says of itself
        :param digest_of: computes a context file's digest
        :param stop: set when the count is reached
        :param node_options: passed on to rclpy's node
        :raises ConfigError: a parameter is refused, or there is no usable context file
        """
        super().__init__('text_model_stand_in', **node_options)
        values: dict[str, Any] = {row.name: declare(self, row) for row in TABLE}
        self._values = values
        self._stop = stop
        self._contexts = self._read_contexts(read_info, digest_of)
        self._motion = Motion(
            MotionKind(values['motion']), values['speed_mps'], values['radius_m']
        )
        self._begin_s = time.monotonic()
        self._begin_ns = SIM_START_NS if values['publish_clock'] else time.time_ns()
        self._n_announced = 0
        self._awaited_id = ''
        self._announced_s = 0.0
        self._active_since_ns: int | None = None
        self._context_publisher = self.create_publisher(VlmContext, 'context', qos.OUTPUT)
        self._odometry_publisher = self.create_publisher(Odometry, 'odometry', qos.OUTPUT)
        self._clock_publisher = (
            self.create_publisher(ClockMsg, '/clock', qos.OUTPUT)
            if values['publish_clock']
            else None
        )
        for topic in ('trajectory', 'rejected'):
            self.create_subscription(PlannedTrajectory, topic, self._on_answer, qos.OUTPUT)
        self.create_subscription(PlannerStatus, 'status', self._on_status, qos.OUTPUT)
        self._add_timer(values['odometry_rate_hz'], self._drive)
        self._add_timer(values['rate_hz'], self._announce)

    def start(self) -> None:
        """Say what will be played."""
        self.get_logger().info(f'{len(self._contexts)} context files, {self._motion}')

    def request_stop(self) -> None:
        """Nothing here takes long."""

    def report_defect(self, error: Exception) -> None:
        """Log an exception that a callback let through."""
        self.get_logger().error(''.join(traceback.format_exception(error)))

    def close(self) -> None:
        """Wait until the last announcement has arrived everywhere."""
        self._context_publisher.wait_for_all_acked(Duration(seconds=ACK_TIMEOUT_S))

    def _add_timer(self, rate_hz: float, callback: Callable[[], None]) -> None:
        clock = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0 / rate_hz, callback, clock=clock)

    def _read_contexts(
        self, read_info: Callable[[Path], ContextInfo], digest_of: Callable[[Path], str]
    ) -> list[ContextInfo]:
        folder = self._values['context.directory']
        if not folder:
            raise ConfigError('context.directory', folder, 'must be set to a folder')
        contexts = []
        for path in sorted(Path(folder).glob('*.safetensors')):
            try:
                digest = digest_of(path) if self._values['send_digest'] else ''
                contexts.append(replace(read_info(path), digest=digest))
            except Refusal as refusal:
                self.get_logger().warning(f'left out: {refusal}')
        if not contexts:
            raise ConfigError('context.directory', folder, 'holds no usable context file')
        return contexts

    def _now_ns(self) -> int:
        elapsed_s = time.monotonic() - self._begin_s
        rate: float = self._values['clock_rate']
        return self._begin_ns + round(elapsed_s * rate * NS_PER_S)

    def _drive(self) -> None:
        now_ns = self._now_ns()
        if self._clock_publisher:
            self._clock_publisher.publish(ClockMsg(clock=convert.time_message(now_ns)))
        self._odometry_publisher.publish(
            convert.odometry_to_message(
                self._motion.sample(now_ns, self._begin_ns),
                self._values['frames.fixed'],
                self._values['frames.ego'],
            )
        )

    def _announce(self) -> None:
        t0_ns = self._now_ns() - round(self._values['latency_s'] * NS_PER_S)
        if not self._may_announce(t0_ns):
            return
        i = self._n_announced
        context = self._contexts[i % len(self._contexts)]
        history = self._motion.history(t0_ns, self._begin_ns, 20.0)
        context = replace(
            context,
            context_id=f'context-{i:05}',
            generation=1,
            t0_ns=t0_ns,
            frame_id=self._values['frames.fixed'],
            history=history if self._values['send_history'] else (),
        )
        self._context_publisher.publish(convert.context_to_message(context))
        self._n_announced += 1
        self._awaited_id = context.context_id
        self._announced_s = time.monotonic()

    def _may_announce(self, t0_ns: int) -> bool:
        values, waited_s = self._values, time.monotonic() - self._announced_s
        is_answered = not self._awaited_id or waited_s > values['wait_timeout_s']
        if values['count'] and self._n_announced >= values['count']:
            if is_answered or not values['wait_for_plan']:
                self._stop.set()
            return False
        active_ns = self._active_since_ns
        has_history = active_ns is not None and t0_ns - active_ns >= LEAD_S * NS_PER_S
        return has_history and (is_answered or not values['wait_for_plan'])

    def _on_status(self, message: PlannerStatus) -> None:
        if message.state != PlannerStatus.STATE_ACTIVE:
            self._active_since_ns = None
        elif self._active_since_ns is None:
            self._active_since_ns = self._now_ns()

    def _on_answer(self, message: PlannedTrajectory) -> None:
        if message.context_id == self._awaited_id:
            self._awaited_id = ''
