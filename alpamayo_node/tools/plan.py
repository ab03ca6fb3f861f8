# SPDX-License-Identifier: Apache-2.0
"""
Make one plan without ROS: the node's own pipeline, from a context file to judged waypoints.

The JSON holds everything that the plan depends on and everything that came out; floats are written
so that they read back to the same bits.
"""

from argparse import ArgumentParser
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from dataclasses import replace
import json
from pathlib import Path
import sys
from typing import Any

from alpamayo_node.backend import BACKENDS
from alpamayo_node.backend import BackendConfig
from alpamayo_node.backend import build_expert
from alpamayo_node.contracts import ContextInfo
from alpamayo_node.contracts import EulerStep
from alpamayo_node.contracts import Plan
from alpamayo_node.contracts import PlanRequest
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.context_file import FileStore
from alpamayo_node.model.context_file import history_from_json
from alpamayo_node.model.context_file import read_context_info
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.frames import waypoints_in_fixed_frame
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.history import HistoryLimits
from alpamayo_node.plan.history import ego_start
from alpamayo_node.plan.planner import Planner

EXIT_INVALID = 1
_WAYPOINT_FIELDS = (
    'time_from_start_ns',
    'position_m',
    'orientation_xyzw',
    'speed_mps',
    'accel_mps2',
    'curvature_1pm',
    'heading_rate_rps',
)
_SHOWN_WAYPOINTS = (0, 9, 19, 29, 39, 49, 59, 63)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument('--checkpoint', type=Path, required=True, metavar='DIR')
    parser.add_argument('--context', type=Path, required=True, metavar='FILE')
    parser.add_argument(
        '--history', type=Path, metavar='FILE', help="ego poses instead of the context's own"
    )
    parser.add_argument('--t0', type=int, metavar='NS', help="instead of the context's own")
    parser.add_argument('--seed', type=int, help="default: the context's own, or 0")
    parser.add_argument('--steps', type=int, default=10, help='Euler steps (default 10)')
    parser.add_argument('--samples', type=int, default=1, help='default 1')
    parser.add_argument('--temperature', type=float, default=1.0, help='default 1')
    parser.add_argument('--backend', choices=BACKENDS, default=BACKENDS[0])
    parser.add_argument('--precision', choices=('bfloat16', 'float32'), default='bfloat16')
    parser.add_argument('--buffer-rounding', choices=('bf16', 'none'), default='bf16')
    parser.add_argument('--threads', type=int, default=0, help='0: torch decides (default)')
    parser.add_argument('--json', action='store_true', help='print JSON instead of a table')
    parser.add_argument(
        '--record', type=Path, metavar='FILE', help='write (t, x, v) of every Euler step as JSON'
    )


def run(args: Namespace) -> int:
    """Plan, print, and return 0 if any sample is valid."""
    stored = read_context_info(args.context)
    context = _announced(stored, args)
    start = ego_start(context.history, context.t0_ns, context.frame_id, HistoryLimits())
    seed = args.seed if args.seed is not None else context.seed
    request = PlanRequest(
        context=context,
        start=start,
        seed=_in_range('--seed', seed or 0, 0, 2**64 - 1),
        n_steps=_in_range('--steps', args.steps, 1, 1000),
        n_samples=_in_range('--samples', args.samples, 1, 1000),
        temperature=args.temperature,
    )
    config = BackendConfig(
        checkpoint=args.checkpoint,
        backend=args.backend,
        precision=args.precision,
        buffer_rounding=args.buffer_rounding,
        max_rows=context.shape.n_rows,
        n_threads=args.threads,
    )
    steps: list[dict[str, Any]] = []
    plans, info = _plan(config, args.context.parent, request, steps)
    if args.record:
        args.record.write_text(json.dumps({'steps': steps}))
    if args.json:
        print(json.dumps({'expert': info, 'plans': [_to_json(plan) for plan in plans]}))
    else:
        _print_table(plans)
    return 0 if any(plan.is_valid for plan in plans) else EXIT_INVALID


def _plan(
    config: BackendConfig, folder: Path, request: PlanRequest, steps: list[dict[str, Any]]
) -> tuple[tuple[Plan, ...], dict[str, Any]]:
    def on_step(i_sample: int, step: EulerStep) -> None:
        arrays = {'x': step.x.tolist(), 'v': step.v.tolist()}
        steps.append({'sample': i_sample, 't': step.t, **arrays})

    expert = build_expert(config, _never, _progress())
    planner = Planner(
        expert, FileStore(folder), adjust_limits=AdjustLimits(), gate_limits=GateLimits()
    )
    try:
        return planner.plan(request, _never, on_step=on_step), asdict(planner.info)
    finally:
        planner.close()


def _announced(stored: ContextInfo, args: Namespace) -> ContextInfo:
    """Announce the file as it describes itself, but for what the caller says."""
    changes: dict[str, Any] = {}
    if args.t0 is not None:
        changes['t0_ns'] = args.t0
    if args.history:
        changes['frame_id'], changes['history'] = _read_history(args.history)
    return replace(stored, **changes)


def _read_history(path: Path) -> tuple[str, Any]:
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
        return str(data['frame_id']), history_from_json(json.dumps(data['samples']))
    except (OSError, ValueError, TypeError, KeyError) as error:
        rule = f'cannot be read as {{"frame_id", "samples": [...]}}: {error}'
        raise ConfigError('--history', str(path), rule) from error


def _to_json(plan: Plan) -> dict[str, Any]:
    request, trajectory = plan.request, plan.trajectory
    positions_m, orientations = waypoints_in_fixed_frame(trajectory, request.start)
    context = asdict(request.context)
    for name in ('status', 'transport'):
        context[name] = context[name].value
    return {
        'valid': plan.is_valid,
        'reasons': [{'code': str(f.reason), 'text': f.text} for f in plan.reasons],
        'adjustments': [{'code': str(f.reason), 'text': f.text} for f in plan.adjustments],
        'context': context,
        'start': asdict(request.start),
        'seed': request.seed,
        'n_steps': request.n_steps,
        'temperature': request.temperature,
        'sample': plan.i_sample,
        'sample_count': request.n_samples,
        'noise': plan.noise.tolist(),
        'action': plan.action.tolist(),
        'ego_frame': {
            name: getattr(trajectory, name).tolist() for name in ('x_m', 'y_m', 'heading_rad')
        },
        'waypoints': [
            dict(zip(_WAYPOINT_FIELDS, row, strict=True))
            for row in zip(
                trajectory.time_from_start_ns.tolist(),
                positions_m.tolist(),
                orientations.tolist(),
                trajectory.speed_mps.tolist(),
                trajectory.accel_mps2.tolist(),
                trajectory.curvature_1pm.tolist(),
                trajectory.heading_rate_rps.tolist(),
                strict=True,
            )
        ],
        'times_s': asdict(plan.times),
    }


def _print_table(plans: tuple[Plan, ...]) -> None:
    for plan in plans:
        request, t = plan.request, plan.trajectory
        verdict = 'valid' if plan.is_valid else 'NOT VALID'
        print(
            f'{request.context.context_id}, sample {plan.i_sample + 1} of {request.n_samples}: '
            f'{verdict}; v0 {request.start.speed_mps:.2f} m/s, seed {request.seed}, '
            f'{request.n_steps} steps, {plan.times.sample_s * 1e3:.0f} ms'
        )
        for name, findings in (('reason', plan.reasons), ('adjusted', plan.adjustments)):
            for finding in findings:
                print(f'  {name}: {finding.reason}: {finding.text}')
        print('  t [s]   x [m]   y [m]  heading [rad]  v [m/s]  a [m/s²]  curvature [1/m]')
        for i in _SHOWN_WAYPOINTS:
            print(
                f'  {t.time_from_start_ns[i] / 1e9:5.1f} {t.x_m[i]:7.2f} {t.y_m[i]:7.2f} '
                f'{t.heading_rad[i]:14.3f} {t.speed_mps[i]:8.2f} {t.accel_mps2[i]:9.2f} '
                f'{t.curvature_1pm[i]:16.4f}'
            )


def _progress() -> Callable[[str], None]:
    """Show progress on standard error, on one line if that is a terminal."""
    if not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f'\r\033[K{text}', end='', file=sys.stderr, flush=True)


def _in_range(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ConfigError(name, value, f'must be in [{low}, {high}]')
    return value


def _never() -> bool:
    return False
