# SPDX-License-Identifier: Apache-2.0
"""How far the emulated chip is from the reference: last hidden state, velocity, waypoints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from alpamayo_node.contracts import EulerStep
from alpamayo_node.contracts import Expert
from alpamayo_node.model.checkpoint import OUT_PROJ
from alpamayo_node.model.config import ModelConfig
from alpamayo_node.model.torch_expert import TorchExpert
from alpamayo_node.plan.unicycle import denormalise
from alpamayo_node.plan.unicycle import integrate
from tests.emulation.experts import chip_expert
from tests.emulation.experts import relative
from tests.model.builders import RandomContext
from tests.model.builders import load_expert
from tests.model.builders import never
from tests.model.builders import noise
from tests.model.builders import random_tensors
from tests.model.builders import text_config
from tests.model.builders import tiny_config
from tests.model.builders import wide_config
from tests.model.builders import write_checkpoint

V0_MPS = 10.0
N_STEPS = 10
MODES: dict[str, dict[str, Any]] = {
    'decode': {'attention': 'decode'},
    'standard': {'attention': 'standard', 'k_chunk_rows': 128},
    'folded': {'attention': 'standard', 'is_folded': True},
}


@dataclass(frozen=True)
class Differences:
    """Relative norms of one step's last hidden state and velocity; worst waypoint in metres."""

    hidden: float
    velocity: float
    waypoint_m: float

    def __str__(self) -> str:
        return f'{self.hidden:6.2%}  {self.velocity:6.2%}  {self.waypoint_m:.3f} m'


TOLERANCES = {
    'deep': {
        'bf16': Differences(0.07, 0.09, 0.6),
        'bfp8': Differences(0.12, 0.16, 0.6),
        'bfp4': Differences(1.0, 1.2, 3.0),
    },
    'wide': {
        'bf16': Differences(0.012, 0.015, 0.01),
        'bfp8': Differences(0.022, 0.03, 0.08),
        'bfp4': Differences(0.25, 0.3, 1.5),
    },
}
"""By model and format of the weights."""


def write_calm_checkpoint(directory: Path, config: ModelConfig) -> Path:
    """
    Write random weights whose velocities are small.

    A trained flow leads neighbouring points to neighbouring actions; a random one drives them
    apart, and metres would tell about chaos instead of rounding.
    """
    tensors = random_tensors(config)
    tensors[OUT_PROJ + 'weight'] *= 0.25
    return write_checkpoint(directory, config, tensors)


@dataclass(frozen=True)
class Model:
    """A model's size, and the context that it is compared on."""

    config: ModelConfig
    n_rows: int
    max_rows: int


MODELS = {
    'deep': Model(
        tiny_config(
            expert=text_config(n_layers=64), vlm=text_config(n_layers=64, hidden=128, n_heads=8)
        ),
        n_rows=200,
        max_rows=300,
    ),
    'wide': Model(wide_config(2), n_rows=700, max_rows=960),
}
"""All layers at reduced width, and two at full width."""


def compare(
    directory: Path, model: Model, *, weights: str, left_pad: int = 0, **options: Any
) -> Differences:
    """
    Run the same context and noise on the emulated chip and on the CPU in float32.

    :param directory: of the checkpoint
    :param model: whose checkpoint it is
    :param weights: format on the chip
    :param options: of the chip
    """
    chip = chip_expert(directory, max_rows=model.max_rows, weights=weights, **options)
    return _compare(chip, lambda tokens: chip.network.hidden(tokens), directory, model, left_pad)


def compare_bfloat16(directory: Path, model: Model) -> Differences:
    """Run the CPU in bfloat16 instead of the chip; see `compare`."""
    expert = load_expert(directory, precision='bfloat16', max_rows=model.max_rows)
    return _compare(expert, lambda tokens: _hidden(expert, tokens), directory, model, 0)


def _compare(
    expert: Expert,
    hidden_of: Callable[[torch.Tensor], torch.Tensor],
    directory: Path,
    model: Model,
    left_pad: int,
) -> Differences:
    n_rows = model.n_rows
    context = RandomContext(
        model.config, n_rows, left_pad=left_pad, rope_delta=-n_rows // 3, dtype=torch.bfloat16
    )
    reference = load_expert(directory, max_rows=model.max_rows)
    x, t = noise(), 0.3
    for each in (reference, expert):
        each.load(context, never)
    # What the last hidden state is compared for lies behind the projection that both share.
    with torch.inference_mode():
        tokens = _in_proj(reference, torch.from_numpy(x), t)
        expected, got = _hidden(reference, tokens), hidden_of(tokens)
    velocities, positions = [], []
    for each in (reference, expert):
        steps: list[EulerStep] = []
        action = each.sample(x, n_steps=N_STEPS, should_stop=never, on_step=steps.append)
        velocities.append(steps[0].v)
        space = each.info.action_space
        trajectory = integrate(*denormalise(action, space), V0_MPS, space.dt_ns)
        positions.append(np.stack([trajectory.x_m, trajectory.y_m]))
    return Differences(
        hidden=relative(got.numpy(), expected.numpy()),
        velocity=relative(velocities[1], velocities[0]),
        waypoint_m=float(np.hypot(*(positions[1] - positions[0])).max()),
    )


def _in_proj(expert: TorchExpert, x: torch.Tensor, t: float) -> torch.Tensor:
    assert expert._network is not None
    return expert._network.in_proj(x, t)


def _hidden(expert: TorchExpert, tokens: torch.Tensor) -> torch.Tensor:
    network = expert._network
    assert network is not None
    for i_layer in range(len(network.layers)):
        tokens = network.run_layer(i_layer, tokens)
    return network.normalise(tokens)
