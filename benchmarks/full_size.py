# SPDX-License-Identifier: Apache-2.0
"""
Load a checkpoint, plan with it, and tell time and memory of each stage.

    alpamayo make-checkpoint --preset super DIR
    python -m benchmarks.full_size DIR [--rows 4592] [--max-rows 4592] [--steps 10] [--threads 2]

Memory is what is resident after a stage; the peak is the process's high-water mark at the end. The
context is drawn layer by layer, so that the only cache in memory is the expert's own.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
import resource
import sys
import time

from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.torch_expert import TorchExpert
from alpamayo_node.plan.noise import draw_noise
from benchmarks.contexts import DrawnContext
from benchmarks.machine import describe_machine
from benchmarks.machine import resident_gb


def main() -> int:
    """
    Run the stages and print a line for each.

    :return: exit code
    """
    parser = ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('checkpoint', type=Path)
    parser.add_argument('--rows', type=int, default=4592, help='rows of the context')
    parser.add_argument('--max-rows', type=int, default=4592, help='rows to reserve')
    parser.add_argument('--steps', type=int, default=10)
    parser.add_argument('--threads', type=int, default=2)
    args = parser.parse_args()
    checkpoint = _timed('open', lambda: Checkpoint.open(args.checkpoint))
    config = checkpoint.config
    _timed('fingerprint', lambda: checkpoint.fingerprint(lambda: False, lambda text: None))
    expert = _timed('load weights', lambda: _load(checkpoint, args.max_rows, args.threads))
    print(_timed('self-test', lambda: expert.self_test(lambda: False)))
    context = DrawnContext(config, args.rows, rope_delta=-args.rows * 4 // 5)
    _timed('load context', lambda: expert.load(context, lambda: False))
    noise = draw_noise(0, 0, 0, config.action_space.n_waypoints, 1.0)
    _timed(
        f'{args.steps} steps',
        lambda: expert.sample(noise, n_steps=args.steps, should_stop=lambda: False),
    )
    _tell_sizes(checkpoint, args.rows)
    print(describe_machine())
    return 0


def _load(checkpoint: Checkpoint, max_rows: int, n_threads: int) -> TorchExpert:
    return TorchExpert.from_checkpoint(
        checkpoint,
        precision='bfloat16',
        buffer_rounding='bf16',
        max_rows=max_rows,
        n_threads=n_threads,
        fingerprint='',
        progress=lambda text: None,
        should_stop=lambda: False,
    )


def _timed[T](stage: str, work: Callable[[], T]) -> T:
    before_gb, began_s = resident_gb(), time.perf_counter()
    result = work()
    took_s = time.perf_counter() - began_s
    after_gb = resident_gb()
    print(f'{stage:>14}: {took_s:7.2f} s, {after_gb:5.2f} GB ({after_gb - before_gb:+.2f})')
    return result


def _tell_sizes(checkpoint: Checkpoint, n_rows: int) -> None:
    text, n_own = checkpoint.config.expert, checkpoint.config.action_space.n_waypoints
    cache_bytes = 2 * 2 * text.n_layers * text.kv_dim * (n_rows + n_own)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(
        f'peak {peak_gb:.2f} GB; weights are {checkpoint.n_bytes / 1e9:.2f} GB and the cache of '
        f'{n_rows} rows is {cache_bytes / 1e9:.2f} GB in bfloat16'
    )


if __name__ == '__main__':
    sys.exit(main())
