# SPDX-License-Identifier: Apache-2.0
"""
Run one node as a process that ends in order, whenever and however often it is told to.

SIGINT and SIGTERM only set a flag, in every phase; the node then ends its work at the next step,
closes what it owns, and the process exits with 0. Further signals change nothing: a close that is
interrupted half-way is what leaves hardware unusable.

The executor spins in a second thread, because Python runs signal handlers on the main thread only
and an executor waits in C.
"""

from collections.abc import Callable
from collections.abc import Sequence
import signal
import sys
from threading import Event
from threading import Thread
from typing import Any
from typing import Protocol

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from alpamayo_node.errors import ConfigError

EXIT_CONFIG = 2
SPIN_TIMEOUT_S = 30.0


class RunnableNode(Protocol):
    """What a node must offer to be run here."""

    def start(self) -> None:
        """Begin; called once, on the executor's thread."""

    def request_stop(self) -> None:
        """End long work soon; called on the main thread, returns at once."""

    def report_defect(self, error: Exception) -> None:
        """Take note of an exception that a callback let through."""

    def close(self) -> None:
        """Release everything; called when no callback runs any more."""

    def destroy_node(self) -> Any:
        """As rclpy's nodes have it."""


def run_until_signal(
    make_node: Callable[[Event], RunnableNode], args: Sequence[str] | None = None
) -> int:
    """
    Make a node and run it until a signal, or until it sets the flag itself.

    :param make_node: gets the flag that ends the process
    :param args: for rclpy; default: the process's own
    :return: exit code: 0, or 2 when the node refuses its parameters
    """
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = make_node(stop)
    except ConfigError as error:
        print(f'parameter {error}', file=sys.stderr)  # noqa: T201
        rclpy.try_shutdown()
        return EXIT_CONFIG
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    executor.create_task(node.start)
    spinner = Thread(target=_spin, args=(executor, node, stop), name='executor')
    spinner.start()
    stop.wait()
    node.request_stop()
    executor.shutdown(timeout_sec=SPIN_TIMEOUT_S)
    spinner.join(SPIN_TIMEOUT_S)
    node.close()
    node.destroy_node()
    rclpy.try_shutdown()
    return 0


def _spin(executor: SingleThreadedExecutor, node: RunnableNode, stop: Event) -> None:
    while not stop.is_set():
        try:
            executor.spin_once()
        except ExternalShutdownException:
            stop.set()
        except Exception as error:  # one bad callback must not end the node
            node.report_defect(error)
