# SPDX-License-Identifier: Apache-2.0
"""
Listen to a planner as any consumer would: plans, refusals and status, with plain callbacks.

For tools and examples that show or collect what a planner publishes; it publishes nothing itself.
"""

from collections.abc import Callable
from typing import Any

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.qos import ReliabilityPolicy


class PlanWatcher(Node):
    """Subscribes to `trajectory`, `rejected` and `status`, relative to its namespace."""

    def __init__(
        self,
        *,
        on_plan: Callable[[PlannedTrajectory], None],
        on_rejected: Callable[[PlannedTrajectory], None],
        on_status: Callable[[PlannerStatus], None],
        **node_options: Any,
    ) -> None:
        """
        :param on_plan: receives each valid plan; called on the executor's thread, like the others
        :param on_rejected: receives each context's refusal
        :param on_status: receives each heartbeat
        :param node_options: passed on to rclpy's node; `namespace` is the planner's
        """
        super().__init__('plan_watcher', **node_options)
        qos = QoSProfile(depth=50, reliability=ReliabilityPolicy.RELIABLE)
        self.create_subscription(PlannedTrajectory, 'trajectory', on_plan, qos)
        self.create_subscription(PlannedTrajectory, 'rejected', on_rejected, qos)
        self.create_subscription(PlannerStatus, 'status', on_status, qos)
