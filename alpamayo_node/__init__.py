# SPDX-License-Identifier: Apache-2.0
"""
Plan with Alpamayo 2 Super's action expert, in ROS 2.

Importing this package needs neither ROS nor a chip: see docs/architecture.md for the layers.
"""

__version__ = '0.1.0'
