# SPDX-License-Identifier: Apache-2.0
"""
Measure how far bfloat16 is from float32, at points of one sampled flow.

    python -m benchmarks.precision CHECKPOINT [--rows 512]

The expert samples in bfloat16 and records each step. At the first, a middle and the last point the
velocity is computed again in float32, one layer in memory at a time, so that a checkpoint of full
size fits. Comparing at recorded points keeps the divergence of two flows out of the numbers.
"""

from argparse import ArgumentParser
from pathlib import Path
import sys

import numpy as np
from numpy.typing import NDArray
import torch

from alpamayo_node.contracts import EulerStep
from alpamayo_node.model.action_proj import ActionInProj
from alpamayo_node.model.action_proj import ActionOutProj
from alpamayo_node.model.checkpoint import EXPERT
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.kv_cache import KvCache
from alpamayo_node.model.layers import DecoderLayer
from alpamayo_node.model.layers import rms_norm
from alpamayo_node.model.rope import expert_positions
from alpamayo_node.model.rope import rope_tables
from alpamayo_node.model.torch_expert import TorchExpert
from alpamayo_node.plan.noise import draw_noise
from benchmarks.contexts import DrawnContext
from benchmarks.machine import describe_machine

_N_STEPS = 10


def main() -> int:
    """
    Print the relative difference of velocities at three points.

    :return: exit code
    """
    parser = ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('checkpoint', type=Path)
    parser.add_argument('--rows', type=int, default=512, help='rows of the context')
    args = parser.parse_args()
    print(describe_machine())
    checkpoint = Checkpoint.open(args.checkpoint)
    context = DrawnContext(checkpoint.config, args.rows, rope_delta=-args.rows // 2)
    steps = _sample(checkpoint, context)
    for i_step in (0, _N_STEPS // 2, _N_STEPS - 1):
        step = steps[i_step]
        exact = _velocity_in_float32(checkpoint, context, step)
        difference = float(np.linalg.norm(step.v - exact) / np.linalg.norm(exact))
        print(f'step {i_step}: velocities differ by {difference:.2%} (relative norm)')
    return 0


def _sample(checkpoint: Checkpoint, context: DrawnContext) -> list[EulerStep]:
    expert = TorchExpert.from_checkpoint(
        checkpoint,
        precision='bfloat16',
        buffer_rounding='bf16',
        max_rows=context.shape.n_rows,
        n_threads=0,
        fingerprint='',
        progress=lambda text: None,
        should_stop=lambda: False,
    )
    expert.load(context, lambda: False)
    steps: list[EulerStep] = []
    noise = draw_noise(0, 0, 0, checkpoint.config.action_space.n_waypoints, 1.0)
    expert.sample(noise, n_steps=_N_STEPS, should_stop=lambda: False, on_step=steps.append)
    expert.close()
    return steps


@torch.inference_mode()
def _velocity_in_float32(
    checkpoint: Checkpoint, context: DrawnContext, step: EulerStep
) -> NDArray[np.float32]:
    text, shape, n = checkpoint.config.expert, context.shape, len(step.x)
    cache = KvCache(
        n_layers=text.n_layers,
        n_kv_heads=text.n_kv_heads,
        head_dim=text.head_dim,
        max_rows=shape.n_rows,
        n_own=n,
        dtype=torch.float32,
    )
    cache.set_window(shape.n_rows, shape.left_pad)
    positions = expert_positions(shape.n_rows, shape.rope_delta, n)
    rope = rope_tables(positions, text.head_dim, text.rope_theta)
    h = ActionInProj(checkpoint, buffer_rounding='bf16')(torch.from_numpy(step.x), step.t)
    for i_layer in range(text.n_layers):
        cache.load(i_layer, *context.layer(i_layer))
        layer = DecoderLayer(checkpoint, i_layer, n_tokens=n, dtype=torch.float32)
        h = layer(h, rope, cache)
    h = rms_norm(h, checkpoint.get(EXPERT + 'norm.weight').float(), text.rms_eps)
    velocity: NDArray[np.float32] = ActionOutProj(checkpoint)(h).numpy()
    return velocity


if __name__ == '__main__':
    sys.exit(main())
