# SPDX-License-Identifier: Apache-2.0
"""
The quality of service of each topic, and why.

Subscriptions ask for the weakest that serves, so that live sources and bags both connect; nothing
essential is latched. A context queue is one deep: what counts is the newest.
"""

from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy
from rclpy.qos import HistoryPolicy
from rclpy.qos import QoSPolicyKind
from rclpy.qos import QoSProfile
from rclpy.qos import ReliabilityPolicy

from alpamayo_node.ros.params import Settings

_RELIABILITY = {
    'reliable': ReliabilityPolicy.RELIABLE,
    'best_effort': ReliabilityPolicy.BEST_EFFORT,
}

OUTPUT = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=10,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.VOLATILE,
)
"""What peers of the planner publish and ask for: reliable serves every subscriber."""


def profile(settings: Settings, name: str, depth: int) -> QoSProfile:
    """
    Build the profile that the parameters `qos.<name>.*` ask for.

    :param name: 'context', 'odometry' or 'outputs'
    :param depth: messages kept until they are taken or sent
    """
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=_RELIABILITY[settings.text(f'qos.{name}.reliability')],
        durability=DurabilityPolicy.VOLATILE,
    )


def warn_if_incompatible(node: Node, topic: str) -> SubscriptionEventCallbacks:
    """Log a warning, with topic and policy, when a publisher offers less than is asked for."""

    def on_incompatible(info: Any) -> None:
        policy = QoSPolicyKind(info.last_policy_kind).name.lower()
        node.get_logger().warning(
            f'{topic}: a publisher offers less {policy} than asked for; nothing comes from it. '
            f'See the parameters qos.{topic}.*'
        )

    return SubscriptionEventCallbacks(incompatible_qos=on_incompatible)
