# SPDX-License-Identifier: Apache-2.0
"""
Time the expert on a Tenstorrent chip: loading, a step, a layer, each op of a layer.

    python -m benchmarks.chip_step CHECKPOINT [--weights bfp8] [--attention decode] [--rows 4592]

Prints a table. Without a chip it says so and measures nothing: times of a mocked or emulated chip
would mean nothing.
"""

from argparse import ArgumentParser
from pathlib import Path
import sys
import time

from alpamayo_node.backend import BackendConfig
from alpamayo_node.backend import build_expert
from alpamayo_node.chip.options import ChipConfig
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.options import WeightDtypes
from alpamayo_node.errors import AlpamayoError
from alpamayo_node.model.checkpoint import Checkpoint
from benchmarks.contexts import DrawnContext
from benchmarks.machine import describe_machine

DEVICE_NODES = Path('/dev/tenstorrent')


def main() -> int:
    """
    Measure, or say why not.

    :return: exit code: 0 measured, 1 no chip, 2 the chip or the checkpoint failed
    """
    parser = ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('checkpoint', type=Path)
    parser.add_argument('--weights', default='bfp8', help="as the parameter 'chip.weights'")
    parser.add_argument('--cache', default='bf16', choices=('bf16', 'bfp8'))
    parser.add_argument('--attention', default='decode', choices=('decode', 'standard'))
    parser.add_argument('--chunk', type=int, default=0, help='cache rows per step of attention')
    parser.add_argument('--rows', type=int, default=4592, help='rows of the context')
    parser.add_argument('--max-rows', type=int, default=8128)
    parser.add_argument('--steps', type=int, default=20, help='steps that are timed')
    args = parser.parse_args()
    print(describe_machine())
    if not DEVICE_NODES.exists():
        print(f'no {DEVICE_NODES}: no Tenstorrent chip here, nothing was measured')
        return 1
    options = ChipOptions(
        weights=WeightDtypes.parse(args.weights),
        cache_dtype=args.cache,
        attention=args.attention,
        k_chunk_rows=args.chunk,
    )
    config = BackendConfig(
        checkpoint=args.checkpoint,
        backend='ttnn',
        max_rows=args.max_rows,
        chip=ChipConfig(options=options),
    )
    try:
        measure(config, args.rows, args.steps)
    except AlpamayoError as error:
        print(error)
        return 2
    return 0


def measure(config: BackendConfig, n_rows: int, n_steps: int) -> None:
    """
    Load, test, and print all times.

    :param config: of the ttnn backend
    :param n_rows: rows of the context
    :param n_steps: steps that are timed
    :raises AlpamayoError: the chip or the checkpoint failed
    """
    expert = build_expert(config, lambda: False, print)
    try:
        # The timing code needs ttnn, which the backend has just made ready.
        from alpamayo_node.chip.timing import time_layer
        from alpamayo_node.chip.timing import time_ops
        from alpamayo_node.chip.timing import time_step
        from alpamayo_node.chip.ttnn_expert import TtnnExpert

        assert isinstance(expert, TtnnExpert)
        print(f'chip {expert.network.device.arch()}: {expert.info.precision}')
        print(expert.self_test(lambda: False))
        model = Checkpoint.open(config.checkpoint).config
        started_s = time.perf_counter()
        expert.load(DrawnContext(model, n_rows, rope_delta=-n_rows // 2), lambda: False)
        print(f'context of {n_rows} rows to the chip: {time.perf_counter() - started_s:.2f} s')
        step = time_step(expert.network, n_steps)
        print(
            f'step of {step.n_layers} layers: median {step.median_ms:.2f} ms, '
            f'{step.min_ms:.2f} to {step.max_ms:.2f} ms'
        )
        print(f'layer 0: {time_layer(expert.network, 0):.1f} us')
        times_us = time_ops(expert.network, 0)
        for name, op_us in times_us.items():
            print(f'  {name:14} {op_us:8.1f} us')
        print(f'  {"sum":14} {sum(times_us.values()):8.1f} us')
    finally:
        expert.close()


if __name__ == '__main__':
    sys.exit(main())
