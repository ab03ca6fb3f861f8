# SPDX-License-Identifier: Apache-2.0
from threading import Event
import time

import pytest

from alpamayo_node.ros.heartbeat import Heartbeat

pytestmark = pytest.mark.ros


def test_heartbeat_beats_until_stopped_and_not_after() -> None:
    beats: list[float] = []
    enough = Event()

    def beat() -> None:
        beats.append(time.monotonic())
        if len(beats) == 5:
            enough.set()

    heartbeat = Heartbeat(0.01, beat)
    heartbeat.start()
    assert enough.wait(10.0)
    heartbeat.stop()
    n_beats = len(beats)
    time.sleep(0.05)
    assert len(beats) == n_beats


def test_heartbeat_late_beats_are_not_made_up_for() -> None:
    # A beat that took ten periods is followed by one beat, not by ten at once.
    starts: list[float] = []
    enough = Event()

    def beat() -> None:
        starts.append(time.monotonic())
        if len(starts) == 1:
            time.sleep(0.5)
        if len(starts) == 4:
            enough.set()

    heartbeat = Heartbeat(0.05, beat)
    heartbeat.start()
    assert enough.wait(10.0)
    heartbeat.stop()
    assert starts[3] - starts[1] >= 0.09


def test_heartbeat_never_started_can_be_stopped() -> None:
    Heartbeat(1.0, lambda: None).stop()
