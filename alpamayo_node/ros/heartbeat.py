# SPDX-License-Identifier: Apache-2.0
"""
Call something at a fixed rate of a steady clock, on a thread of its own.

The heartbeat must go on while the executor is busy and whatever the ROS clock does, so it is no
ROS timer.
"""

from collections.abc import Callable
from threading import Event
from threading import Thread
import time


class Heartbeat:
    """Beats from `start` to `stop`."""

    def __init__(self, period_s: float, beat: Callable[[], None]) -> None:
        """
        :param period_s: between two beats; a beat that takes longer delays the next one only
        :param beat: called on the heartbeat's thread; must not raise
        """
        self._period_s = period_s
        self._beat = beat
        self._is_over = Event()
        self._thread = Thread(target=self._run, name='heartbeat', daemon=True)

    def start(self) -> None:
        """Begin to beat, at once."""
        self._thread.start()

    def stop(self) -> None:
        """End; returns after the last beat."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._is_over.is_set():
            self._beat()
            due_s = max(due_s + self._period_s, time.monotonic())
            self._is_over.wait(due_s - time.monotonic())
