# SPDX-License-Identifier: Apache-2.0
"""
Time one layer and step of the expert against the same layers in `transformers`, in one run.

    python -m benchmarks.cpu_layer [--rows 4592] [--threads 2] [--rounds 15]

Both run four layers of full width in bfloat16 on the same weights, tokens and context, one after
the other in each round, so that both meet the same state of the machine, which must be idle
otherwise. `transformers` runs `Qwen3VLTextModel` with a `DynamicCache` that is cropped after each
step, SDPA attention and the additive mask of the released model. The ratio of the medians is what
counts; the command fails when it is above 0.45, or when the results disagree.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median
import sys
from tempfile import TemporaryDirectory
import time

import torch

from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.checkpoint import expected_tensors
from alpamayo_node.model.network import ExpertNetwork
from alpamayo_node.tools.make_checkpoint import write_checkpoint
from benchmarks.contexts import DrawnContext
from benchmarks.machine import OtherLoad
from benchmarks.machine import describe_machine
from tests.model.hugging_face import HuggingFaceExpert

MAX_RATIO = 0.45
MAX_DIFFERENCE = 0.05
"""Of the hidden states behind four layers, relative; most of it is the residual stream, which
`transformers` keeps in bfloat16 here and we in float32."""
_N_WARM_UPS = 2


def main() -> int:
    """
    Run the comparison and print it.

    :return: exit code: 0 where both limits are kept
    """
    parser = ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('--rows', type=int, default=4592, help='rows of the context')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with TemporaryDirectory() as directory:
        path = Path(directory) / 'wide4'
        write_checkpoint(path, 'wide4', 0, lambda text: None)
        checkpoint = Checkpoint.open(path)
        context = DrawnContext(checkpoint.config, args.rows, rope_delta=-args.rows * 4 // 5)
        ours = _make_ours(checkpoint, context)
        theirs = _make_theirs(checkpoint, context)
    return _compare(ours, theirs, checkpoint.config.expert.n_layers, args.rounds, args.rows)


def _make_ours(checkpoint: Checkpoint, context: DrawnContext) -> Callable[[], torch.Tensor]:
    shape = context.shape
    network = ExpertNetwork(
        checkpoint,
        dtype=torch.bfloat16,
        buffer_rounding='bf16',
        max_rows=shape.n_rows,
        progress=lambda text: None,
        should_stop=lambda: False,
    )
    network.set_window(shape.n_rows, shape.left_pad, shape.rope_delta)
    for i_layer in range(shape.n_layers):
        network.cache.load(i_layer, *context.layer(i_layer))
    tokens = _tokens(checkpoint)

    @torch.inference_mode()
    def run() -> torch.Tensor:
        h = tokens
        for i_layer in range(shape.n_layers):
            h = network.run_layer(i_layer, h)
        return network.normalise(h)

    return run


def _make_theirs(checkpoint: Checkpoint, context: DrawnContext) -> Callable[[], torch.Tensor]:
    tensors = {name: checkpoint.get(name) for name in expected_tensors(checkpoint.config)}
    model = HuggingFaceExpert(checkpoint.config.expert, tensors, torch.bfloat16)
    model.load(context)
    tokens = _tokens(checkpoint)
    return lambda: model.run(tokens)


def _tokens(checkpoint: Checkpoint) -> torch.Tensor:
    config = checkpoint.config
    size = (config.action_space.n_waypoints, config.expert.hidden)
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def _compare(
    ours: Callable[[], torch.Tensor],
    theirs: Callable[[], torch.Tensor],
    n_layers: int,
    n_rounds: int,
    n_rows: int,
) -> int:
    print(describe_machine())
    print(f'{n_layers} layers of full width, {n_rows} rows, bfloat16, {n_rounds} rounds')
    difference = float((ours() - theirs()).norm() / theirs().norm())
    times_s: dict[str, list[float]] = {'transformers': [], 'ours': []}
    load = OtherLoad()
    for i_round in range(_N_WARM_UPS + n_rounds):
        for name, run in (('transformers', theirs), ('ours', ours)):
            began_s = time.perf_counter()
            run()
            if i_round >= _N_WARM_UPS:
                times_s[name].append((time.perf_counter() - began_s) / n_layers)
    print(f'other processes took {load.share():.0%} of the machine; an idle one is needed')
    for name, values in times_s.items():
        print(
            f'{name:>12}: median {median(values) * 1e3:6.2f}, least {min(values) * 1e3:6.2f}, '
            f'most {max(values) * 1e3:6.2f} ms per layer and step'
        )
    ratio = median(times_s['ours']) / median(times_s['transformers'])
    least = min(times_s['ours']) / min(times_s['transformers'])
    print(f'ratio of medians {ratio:.3f} (limit {MAX_RATIO}), of least times {least:.3f}')
    print(f'results differ by {difference:.2%} (limit {MAX_DIFFERENCE:.0%})')
    return int(ratio > MAX_RATIO or difference > MAX_DIFFERENCE)


if __name__ == '__main__':
    sys.exit(main())
