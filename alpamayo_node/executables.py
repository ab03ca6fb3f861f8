# SPDX-License-Identifier: Apache-2.0
"""
The entry points of the ROS executables: nothing but signals, and then the real thing.

Importing torch and rclpy takes seconds. A signal in that time finds nothing to clean up, so the
process simply ends; the real `main` then installs the handlers that end it in order.
"""

import importlib
import os
import signal
from types import FrameType

from alpamayo_node.threads import limit_spinning


def planner() -> int:
    """Run the planner node."""
    return _run('alpamayo_node.main')


def stand_in() -> int:
    """Run the stand-in for a text model."""
    return _run('alpamayo_node.stand_in')


def _run(module: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    limit_spinning()
    return int(importlib.import_module(module).main())


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    os._exit(0)
