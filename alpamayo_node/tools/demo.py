# SPDX-License-Identifier: Apache-2.0
"""
The main job, to look at: a stand-in text model announces KV caches, the planner plans them.

Both run as processes of their own, started with what launch/demo.launch.py says; this process only
listens, as any consumer would. The model has random weights, so the plans mean nothing; everything
around them is real.
"""

from argparse import ArgumentParser
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor

from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import SetupError
from alpamayo_node.plan.motion import Motion
from alpamayo_node.plan.motion import MotionKind
from alpamayo_node.ros.watch import PlanWatcher
from alpamayo_node.tools.launch_plan import Process
from alpamayo_node.tools.launch_plan import processes
from alpamayo_node.tools.make_checkpoint import PRESETS
from alpamayo_node.tools.make_checkpoint import write_checkpoint
from alpamayo_node.tools.make_context import ContextSpec
from alpamayo_node.tools.make_context import make_context
from alpamayo_node.tools.plot import PlottedPlan
from alpamayo_node.tools.plot import plot_plans

N_CONTEXT_FILES = 4
_HEADING = (
    '   #  context           age   v0          end of plan, 6.4 s after t0       sampling  verdict'
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument('--contexts', type=int, default=20, metavar='N', help='default 20')
    parser.add_argument('--preset', choices=tuple(PRESETS), default='tiny', help='default tiny')
    parser.add_argument('--rate', type=float, default=4.0, metavar='HZ', help='default 4')
    parser.add_argument(
        '--out', type=Path, default=Path('out/demo'), metavar='DIR', help='default out/demo'
    )
    parser.add_argument(
        '--timeout', type=float, default=300.0, metavar='S', help='for all plans (default 300)'
    )


def run(args: Namespace) -> int:
    """Run the demo; 0 if every context got a valid plan."""
    if args.contexts < 1:
        raise ConfigError('--contexts', args.contexts, 'must be at least 1')
    out = args.out.resolve()
    checkpoint, contexts = prepare(out, args.preset)
    # A graph of its own, so that nothing else on this machine takes part.
    os.environ.setdefault('ROS_DOMAIN_ID', str(os.getpid() % 100 + 1))
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    started = processes(
        'demo.launch.py',
        {
            'checkpoint': str(checkpoint),
            'context_directory': str(contexts),
            'count': str(args.contexts),
            'rate_hz': str(args.rate),
        },
    )
    with _running(started, out / 'log') as children:
        seen = _Seen()
        _watch(seen, args.contexts, args.timeout, children)
    if seen.plans:
        picture = out / 'plans.png'
        plot_plans(
            [plotted(message) for message in seen.plans],
            picture,
            f'{len(seen.plans)} plans of a random-weight model on a circle; the newest in colour',
        )
        print(f'\npicture: {picture}\nlogs:    {out / "log"}')
    is_complete = len(seen.plans) == args.contexts and not seen.rejected
    print(f'{len(seen.plans)} of {args.contexts} contexts got a valid plan')
    return 0 if is_complete else 1


def prepare(out: Path, preset: str) -> tuple[Path, Path]:
    """
    Make a checkpoint and context files, unless they are there already.

    :return: their folders
    """
    checkpoint, contexts = out / f'checkpoint-{preset}', out / f'contexts-{preset}'
    if not (checkpoint / 'config.json').exists():
        print(f'making a random {preset} checkpoint in {checkpoint}')
        write_checkpoint(checkpoint, preset, 0, lambda text: print(f'  {text}'))
    contexts.mkdir(parents=True, exist_ok=True)
    for i in range(N_CONTEXT_FILES):
        path = contexts / f'drive-{i}.safetensors'
        if not path.exists():
            print(f'running a random text model for {path.name}')
            spec = ContextSpec(seed=i, motion=Motion(MotionKind.CIRCLE, 8.0, 60.0))
            make_context(checkpoint, path, spec, lambda text: None)
    return checkpoint, contexts


def plotted(message: PlannedTrajectory) -> PlottedPlan:
    """Take what is drawn from a plan's message."""
    waypoints = message.waypoints
    start = message.ego_pose.position
    since_s = [w.time_from_start.sec + w.time_from_start.nanosec * 1e-9 for w in waypoints]
    return PlottedPlan(
        label=message.context_id,
        x_m=np.array([start.x, *(w.pose.position.x for w in waypoints)]),
        y_m=np.array([start.y, *(w.pose.position.y for w in waypoints)]),
        time_s=np.array([0.0, *since_s]),
        speed_mps=np.array([message.ego_speed, *(w.longitudinal_speed for w in waypoints)]),
        accel_mps2=np.array([w.acceleration for w in waypoints]),
        curvature_1pm=np.array([w.curvature for w in waypoints]),
    )


class _Seen:
    """What the demo has heard so far, shown as it comes."""

    def __init__(self) -> None:
        self.plans: list[PlannedTrajectory] = []
        self.rejected: list[PlannedTrajectory] = []
        self._activity = ''
        self._state = 0

    @property
    def n_answers(self) -> int:
        return len(self.plans) + len(self.rejected)

    def on_plan(self, message: PlannedTrajectory) -> None:
        if not self.n_answers:
            print(_HEADING)
        self.plans.append(message)
        end = message.waypoints[-1]
        adjusted = ', '.join(adjustment.code for adjustment in message.adjustments)
        age_s = message.age.sec + message.age.nanosec * 1e-9
        print(
            f'{self.n_answers:4}  {message.context_id}  {age_s:5.2f} s '
            f'{message.ego_speed:5.2f} m/s  '
            f'x {end.pose.position.x:7.2f}, y {end.pose.position.y:7.2f} m'
            f', {end.longitudinal_speed:5.2f} m/s  '
            f'{message.times.sample * 1e3:7.1f} ms'
            f'  valid{f" (adjusted: {adjusted})" if adjusted else ""}',
            flush=True,
        )

    def on_rejected(self, message: PlannedTrajectory) -> None:
        self.rejected.append(message)
        reasons = '; '.join(f'{reason.code}: {reason.text}' for reason in message.reasons)
        print(f'{self.n_answers:4}  {message.context_id}  rejected: {reasons}', flush=True)

    def on_status(self, message: PlannerStatus) -> None:
        if message.activity and message.activity != self._activity:
            print(f'planner: {message.activity}', flush=True)
        self._activity = message.activity
        if message.state == PlannerStatus.STATE_ACTIVE != self._state:
            print(f'planner: active on {message.backend}, {message.precision}\n', flush=True)
        self._state = message.state


def _watch(
    seen: _Seen, n_contexts: int, timeout_s: float, children: dict[str, subprocess.Popen[bytes]]
) -> None:
    rclpy.init(args=[])
    watcher = PlanWatcher(
        on_plan=seen.on_plan, on_rejected=seen.on_rejected, on_status=seen.on_status
    )
    executor = SingleThreadedExecutor()
    executor.add_node(watcher)
    deadline_s = time.monotonic() + timeout_s
    try:
        while seen.n_answers < n_contexts:
            executor.spin_once(timeout_sec=0.2)
            for name, child in children.items():
                if child.poll():
                    raise SetupError(f'{name} ended with code {child.returncode}; see its log')
            if time.monotonic() > deadline_s:
                print(f'no more plans within {timeout_s:.0f} s', file=sys.stderr)
                return
    finally:
        executor.shutdown()
        watcher.destroy_node()
        rclpy.try_shutdown()


@contextmanager
def _running(
    started: tuple[Process, ...], logs: Path
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run processes until the block ends, then end them as launch does: SIGINT first."""
    logs.mkdir(parents=True, exist_ok=True)
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for process in started:
            print(f'starting {process.name}')
            with (logs / f'{process.name}.log').open('wb') as log:
                children[process.name] = subprocess.Popen(
                    process.argv, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
        yield children
    finally:
        for child in children.values():
            child.send_signal(signal.SIGINT)
        for process in started[: len(children)]:
            child = children[process.name]
            try:
                code = child.wait(process.kill_after_s)
            except subprocess.TimeoutExpired:
                child.kill()
                code = child.wait()
            if code:
                print(f'{process.name} ended with code {code}', file=sys.stderr)
