# SPDX-License-Identifier: Apache-2.0
"""How it talks: parameters, messages, and the node. The only place that imports rclpy."""
