# SPDX-License-Identifier: Apache-2.0
"""Real processes on a real graph: starting, listening, and ending them."""

from collections.abc import Callable
import os
from pathlib import Path
import shutil
import signal
import subprocess
import time

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
from alpamayo_msgs.msg import VlmContext
from ament_index_python.packages import get_package_prefix
from nav_msgs.msg import Odometry
import rclpy
from rclpy.executors import SingleThreadedExecutor

from alpamayo_node.ros import convert
from alpamayo_node.ros.watch import PlanWatcher

PATIENCE_S = 40.0
LIB = Path(get_package_prefix('alpamayo_node')) / 'lib' / 'alpamayo_node'


class Child:
    """One of our executables as a process of its own, with its output in a file."""

    def __init__(
        self,
        name: str,
        log: Path,
        *arguments: str,
        python_path: tuple[Path, ...] = (),
        **parameters: object,
    ) -> None:
        self.log = log
        paths = [*map(str, python_path), os.environ.get('PYTHONPATH', '')]
        environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(paths)}
        argv = [str(LIB / name), '--ros-args', *arguments]
        for key, value in parameters.items():
            argv += ['-p', f'{key.replace("__", ".")}:={_yaml(value)}']
        with log.open('wb') as file:
            self.process = subprocess.Popen(
                argv,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        return self.process.wait(timeout_s)

    @property
    def output(self) -> str:
        return self.log.read_text(encoding='utf-8', errors='replace')

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise


class Listener:
    """Hears everything that goes in and out of the planner in one namespace."""

    def __init__(self, namespace: str) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.plans: list[PlannedTrajectory] = []
        self.rejected: list[PlannedTrajectory] = []
        self.statuses: list[PlannerStatus] = []
        self.contexts: list[VlmContext] = []
        self.odometry: list[Odometry] = []
        self.node = PlanWatcher(
            on_plan=self.plans.append,
            on_rejected=self.rejected.append,
            on_status=self.statuses.append,
            context=self.context,
            namespace=namespace,
        )
        self.node.create_subscription(VlmContext, 'context', self.contexts.append, 50)
        self.node.create_subscription(Odometry, 'odometry', self.odometry.append, 5000)
        self.publisher = self.node.create_publisher(VlmContext, 'context', 1)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)

    def until(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, self.last_words()
            self.executor.spin_once(timeout_sec=0.05)

    def until_state(self, state: int) -> None:
        self.until(lambda: bool(self.statuses) and self.statuses[-1].state == state)

    def fresh_status(self) -> PlannerStatus:
        n = len(self.statuses)
        self.until(lambda: len(self.statuses) > n + 1)
        return self.statuses[-1]

    def counters(self) -> dict[str, int]:
        return {counter.name: counter.count for counter in self.fresh_status().counters}

    def last_words(self) -> str:
        status = self.statuses[-1] if self.statuses else 'no status was heard'
        return f'{len(self.plans)} plans, {len(self.rejected)} rejected; {status}'

    def announce(self, context: object) -> None:
        self.publisher.publish(convert.context_to_message(context))


class Scene:
    """A planner, its peers and a listener in one namespace, all ended with the test."""

    def __init__(self, tmp_path: Path, model: Path, namespace: str) -> None:
        self.tmp_path = tmp_path
        self.checkpoint = model / 'checkpoint'
        self.contexts = tmp_path / 'contexts'
        shutil.copytree(model / 'contexts', self.contexts)
        self.namespace = namespace
        self.listener = Listener(namespace)
        self.children: list[Child] = []

    def start(self, name: str, *arguments: str, **parameters: object) -> Child:
        log = self.tmp_path / f'{name}-{len(self.children)}.log'
        remap = ('-r', f'__ns:=/{self.namespace}')
        child = Child(name, log, *remap, *arguments, **parameters)
        self.children.append(child)
        return child

    def planner(self, *arguments: str, **parameters: object) -> Child:
        folders = {
            'checkpoint__directory': self.checkpoint,
            'context__directory': self.contexts,
        }
        return self.start('planner', *arguments, **{**folders, **parameters})

    def stand_in(self, **parameters: object) -> Child:
        defaults = {'context__directory': self.contexts, 'wait_for_plan': True, 'rate_hz': 20.0}
        return self.start('stand_in', **{**defaults, **parameters})

    def close(self) -> None:
        try:
            for child in reversed(self.children):
                child.end()
        finally:
            self.listener.close()


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
