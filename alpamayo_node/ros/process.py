# SPDX-License-Identifier: Apache-2.0
"""
Run one node as a process that ends in order, whenever and however often it is told to.

SIGINT and SIGTERM only set a flag, in every phase; the node then ends its work at the next step,
closes what it owns, and the process exits with 0. From the first signal on, further ones are
ignored until the process is gone: a close that is interrupted half-way is what leaves hardware
unusable.

The executor spins in a second thread, because Python runs signal handlers on the main thread only
and an executor waits in C.
"""

from collections.abc import Callable
from collections.abc import Sequence
from queue import SimpleQueue
import signal
import sys
from threading import Thread
from types import FrameType
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


class EndFlag:
    """
    Tells the main thread to end the process; a signal handler may set it, too.

    `threading.Event` would not do: its lock is the main thread's own when a handler interrupts it.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakeups: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the process soon; from any thread, any number of times."""
        self._is_set = True
        self._wakeups.put(None)

    def is_set(self) -> bool:
        """Whether the process is to end."""
        return self._is_set

    def wait(self) -> None:
        """Wait until the flag is set; for one thread, once."""
        self._wakeups.get()


def run_until_signal(
    make_node: Callable[[EndFlag], RunnableNode], args: Sequence[str] | None = None
) -> int:
    """
    Make a node and run it until a signal, or until it sets the flag itself.

    :param make_node: gets the flag that ends the process
    :param args: for rclpy; default: the process's own
    :return: exit code: 0, or 2 when the node refuses its parameters
    """
    stop = EndFlag()
    _on_signals(lambda *_: stop.set())
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
    _on_signals(signal.SIG_IGN)  # unlike a function, this outlasts the interpreter's end
    node.request_stop()
    executor.shutdown(timeout_sec=SPIN_TIMEOUT_S)
    spinner.join(SPIN_TIMEOUT_S)
    node.close()
    node.destroy_node()
    rclpy.try_shutdown()
    return 0


def _on_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _spin(executor: SingleThreadedExecutor, node: RunnableNode, stop: EndFlag) -> None:
    while not stop.is_set():
        try:
            executor.spin_once()
        except ExternalShutdownException:
            stop.set()
        except Exception as error:  # one bad callback must not end the node
            node.report_defect(error)
