# SPDX-License-Identifier: Apache-2.0
"""Real processes around a scripted node, and real signals."""

from collections.abc import Iterator
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest

from alpamayo_node.ros.process import EXIT_CONFIG

pytestmark = pytest.mark.ros

PATIENCE_S = 30.0
SCRIPT = """
import sys
import time
from rclpy.node import Node
from alpamayo_node.errors import ConfigError
from alpamayo_node.ros.process import run_until_signal

case = sys.argv[1]

class Last:
    def __del__(self, print=print, sleep=time.sleep):
        print('interpreter ends', flush=True)
        sleep(0.5)

if case == 'late':
    sys.modules['last'] = Last()

class Scripted(Node):
    def __init__(self, end):
        if case == 'config':
            raise ConfigError('rate_hz', -1, 'must be positive')
        super().__init__('scripted')
        self.end = end
        self.create_timer(0.01, self.tick)
        self.n_ticks = 0

    def start(self):
        print('started', flush=True)
        if case == 'busy':
            time.sleep(1.0)
            print('done', flush=True)

    def tick(self):
        self.n_ticks += 1
        if case == 'defect' and self.n_ticks == 1:
            raise RuntimeError('of a callback')
        if case in ('ends itself', 'late') and self.n_ticks == 3:
            self.end.set()

    def request_stop(self):
        print('asked to stop', flush=True)

    def report_defect(self, error):
        print('defect', error, flush=True)

    def close(self):
        if case == 'slow close':
            print('closing', flush=True)
            time.sleep(0.5)
        print('closed', flush=True)

sys.exit(run_until_signal(Scripted))
"""


class Scripted:
    """One process; `line` waits for its next line."""

    def __init__(self, case: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, '-c', SCRIPT, case],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, list[str]]:
        """Give the exit code and all further lines."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output.split('\n')[:-1]


@pytest.fixture
def play() -> Iterator[type[Scripted]]:
    made: list[Scripted] = []

    def start(case: str) -> Scripted:
        made.append(Scripted(case))
        return made[-1]

    yield start
    for scripted in made:
        scripted.process.kill()
        scripted.process.communicate()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_process_signal_ends_it_in_order_with_0(play, number: int) -> None:
    scripted = play('plain')
    assert scripted.line() == 'started'
    scripted.process.send_signal(number)
    assert scripted.end() == (0, ['asked to stop', 'closed'])


def test_process_node_can_end_it(play) -> None:
    scripted = play('ends itself')
    assert scripted.end() == (0, ['started', 'asked to stop', 'closed'])


def test_process_running_callback_ends_before_the_node_is_closed(play) -> None:
    scripted = play('busy')
    assert scripted.line() == 'started'
    scripted.process.send_signal(signal.SIGINT)
    assert scripted.end() == (0, ['asked to stop', 'done', 'closed'])


def test_process_signals_do_not_cut_a_close_short(play) -> None:
    scripted = play('slow close')
    assert scripted.line() == 'started'
    scripted.process.send_signal(signal.SIGINT)
    assert scripted.line() == 'asked to stop'
    assert scripted.line() == 'closing'
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        scripted.process.send_signal(number)
        time.sleep(0.02)
    assert scripted.end() == (0, ['closed'])


def test_process_signals_that_never_cease_change_nothing(play) -> None:
    scripted = play('plain')
    assert scripted.line() == 'started'
    deadline_s = time.monotonic() + PATIENCE_S
    while scripted.process.poll() is None:
        assert time.monotonic() < deadline_s
        for number in (signal.SIGINT, signal.SIGTERM):
            scripted.process.send_signal(number)
    code, lines = scripted.end()
    # Python may remark on a signal that comes in the very moment in which they become ignored.
    assert code == 0
    assert (lines.count('asked to stop'), lines.count('closed')) == (1, 1)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_process_signal_while_the_interpreter_ends_is_ignored(play, number: int) -> None:
    # By then Python has taken its own handlers off.
    scripted = play('late')
    while scripted.line() != 'interpreter ends':
        assert scripted.process.poll() is None
    scripted.process.send_signal(number)
    assert scripted.end() == (0, [])


def test_process_callback_that_fails_is_reported_and_the_node_lives_on(play) -> None:
    scripted = play('defect')
    assert scripted.line() == 'started'
    assert scripted.line() == 'defect of a callback'
    assert scripted.process.poll() is None
    scripted.process.send_signal(signal.SIGTERM)
    assert scripted.end() == (0, ['asked to stop', 'closed'])


def test_process_refused_parameter_is_one_line_and_its_own_code(play) -> None:
    scripted = play('config')
    assert scripted.end() == (EXIT_CONFIG, ['parameter rate_hz = -1: must be positive'])
