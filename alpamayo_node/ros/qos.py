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
"""Everything that the planner publishes: reliable serves every subscriber."""


def subscription(reliability: str, depth: int) -> QoSProfile:
    """
    Ask for what a subscription needs.

    :param reliability: 'reliable' or 'best_effort'
    :param depth: messages kept until the executor takes them
    """
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=_RELIABILITY[reliability],
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
