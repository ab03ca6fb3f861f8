# SPDX-License-Identifier: Apache-2.0
"""
Everything that the planner publishes.

Plans and drawings go out only while the node is active (managed publishers); health is told in
every state. `health` may be called from another thread than the rest.
"""

import time
from typing import Any

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Path
from rclpy.lifecycle import LifecycleNode
from visualization_msgs.msg import MarkerArray

from alpamayo_node.ros import markers
from alpamayo_node.ros import qos
from alpamayo_node.ros import status
from alpamayo_node.ros.params import Settings
from alpamayo_node.ros.params import topic_name


class Outputs:
    """The publishers of one node, by what they say."""

    def __init__(self, node: LifecycleNode, settings: Settings) -> None:
        """
        :param node: that publishes
        :param settings: names and quality of service of the topics
        :raises ConfigError: a topic's name is refused
        """
        profile = qos.profile(settings, 'outputs', settings.integer('qos.outputs.depth'))

        def managed(kind: type, topic: str) -> Any:
            name = topic_name(settings, topic)
            return node.create_lifecycle_publisher(kind, name, profile)

        def always(kind: type, topic: str) -> Any:
            return node.create_publisher(kind, topic_name(settings, topic), profile)

        self._name = node.get_fully_qualified_name().lstrip('/')
        self._trajectory = managed(PlannedTrajectory, 'trajectory')
        self._rejected = managed(PlannedTrajectory, 'rejected')
        self._candidates = managed(PlannedTrajectory, 'candidates')
        self._path = managed(Path, 'path')
        self._markers = managed(MarkerArray, 'markers')
        self._status = always(PlannerStatus, 'status')
        self._diagnostics = always(DiagnosticArray, 'diagnostics')
        self._diagnostics_due_s = 0.0

    def plan(self, message: PlannedTrajectory, settings: Settings) -> None:
        """Publish a valid plan, as trajectory, path and markers."""
        self._trajectory.publish(message)
        self._path.publish(markers.path_of(message))
        self._markers.publish(
            markers.markers_of(
                message,
                lifetime_s=settings.number('markers.lifetime_s'),
                line_width_m=settings.number('markers.line_width_m'),
            )
        )

    def candidates(self, messages: list[PlannedTrajectory]) -> None:
        """Publish every sample of one context, valid or not."""
        for message in messages:
            self._candidates.publish(message)

    def rejected(self, message: PlannedTrajectory) -> None:
        """Publish why a context got no valid plan."""
        self._rejected.publish(message)

    def clear(self, frame_id: str) -> None:
        """Remove all drawings from viewers."""
        self._markers.publish(markers.clear_markers(frame_id))

    def health(self, health: status.Health, diagnostics_period_s: float) -> None:
        """Publish the heartbeat, and diagnostics when they are due."""
        self._status.publish(status.status_message(health))
        now_s = time.monotonic()
        if now_s >= self._diagnostics_due_s:
            self._diagnostics_due_s = now_s + diagnostics_period_s
            self._diagnostics.publish(status.diagnostics_message(health, self._name))
