# SPDX-License-Identifier: Apache-2.0
"""
Small configurations, checkpoints with random weights, and contexts to feed them.

Axes: G key-value heads, S context rows, D head channels.
"""

from collections.abc import Callable
from collections.abc import Mapping
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file
import torch

from alpamayo_node.contracts import ActionSpace
from alpamayo_node.contracts import KvShape
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.checkpoint import expected_tensors
from alpamayo_node.model.config import InProjConfig
from alpamayo_node.model.config import ModelConfig
from alpamayo_node.model.config import TextConfig
from alpamayo_node.model.torch_expert import TorchExpert

SPACE = ActionSpace(
    n_waypoints=64,
    dt_ns=100_000_000,
    accel_mean=0.02902694707164455,
    accel_std=0.6810426736454882,
    curvature_mean=0.0002692167976330542,
    curvature_std=0.026148280660833106,
    accel_bounds=(-9.8, 9.8),
    curvature_bounds=(-0.33, 0.33),
)


def never() -> bool:
    return False


def text_config(**changes: Any) -> TextConfig:
    values: dict[str, Any] = {
        'n_layers': 2,
        'hidden': 64,
        'intermediate': 96,
        'n_heads': 4,
        'n_kv_heads': 2,
        'head_dim': 32,
        'vocab': 128,
        'max_positions': 262_144,
        'rms_eps': 1e-6,
        'rope_theta': 5e6,
        'mrope_section': (6, 5, 5),
    }
    return TextConfig(**(values | changes))


def tiny_config(**changes: Any) -> ModelConfig:
    values: dict[str, Any] = {
        'expert': text_config(),
        'vlm': text_config(hidden=128, n_heads=8),
        'in_proj': InProjConfig(hidden=32, n_layers=2, n_features=20, max_freq=100.0),
        'action_space': SPACE,
    }
    return ModelConfig(**(values | changes))


def wide_config(n_layers: int) -> ModelConfig:
    """Layers as wide as the released model's; 64 of them are the released model."""
    shared = {
        'n_layers': n_layers,
        'n_kv_heads': 8,
        'head_dim': 128,
        'vocab': 155_776,
        'mrope_section': (24, 20, 20),
    }
    return ModelConfig(
        expert=text_config(**shared, hidden=1536, intermediate=6144, n_heads=16),
        vlm=text_config(**shared, hidden=5120, intermediate=25_600, n_heads=64),
        in_proj=InProjConfig(hidden=512, n_layers=2, n_features=20, max_freq=100.0),
        action_space=SPACE,
    )


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """
    Draw weights that make a tame flow.

    Norm weights scatter around 1. Columns that read a feature of frequency f are divided by f, or
    the velocity would turn with x so fast that no two roundings gave the same plan.
    """
    generator = torch.Generator().manual_seed(seed)
    half = torch.logspace(0, 2, config.in_proj.n_freqs)
    frequencies = torch.cat([half, half]).repeat(3)

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor: torch.Tensor = torch.randn(shape, generator=generator)
        if name.endswith('trunk.0.weight'):
            tensor /= shape[1] ** 0.5 * frequencies
            return tensor
        if len(shape) == 2:
            tensor /= shape[1] ** 0.5
            return tensor
        return tensor.mul_(0.1).add_(0.0 if name.endswith('bias') else 1.0)

    shapes = expected_tensors(config)
    return {name: draw(name, shape).to(torch.bfloat16) for name, shape in shapes.items()}


def write_checkpoint(
    directory: Path,
    config: ModelConfig,
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    n_shards: int = 1,
    rename: Callable[[str], str] = str,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / 'config.json').write_text(json.dumps(config.to_dict()))
    if tensors is None:
        tensors = random_tensors(config)
    stored = {rename(name): tensor.contiguous() for name, tensor in tensors.items()}
    if n_shards == 1:
        save_file(stored, directory / 'model.safetensors')
        return directory
    names = sorted(stored)
    weight_map: dict[str, str] = {}
    for i_shard in range(n_shards):
        file = f'model-{i_shard + 1:05}-of-{n_shards:05}.safetensors'
        part = {name: stored[name] for name in names[i_shard::n_shards]}
        save_file(part, directory / file)
        weight_map |= dict.fromkeys(part, file)
    write_index(directory, weight_map)
    return directory


def write_index(directory: Path, weight_map: Mapping[str, Any]) -> None:
    index = directory / 'model.safetensors.index.json'
    index.write_text(json.dumps({'metadata': {}, 'weight_map': weight_map}))


def load_expert(directory: Path, **changes: Any) -> TorchExpert:
    values: dict[str, Any] = {
        'precision': 'float32',
        'buffer_rounding': 'bf16',
        'max_rows': 256,
        'n_threads': 0,
        'fingerprint': 'sha256:test',
        'progress': lambda text: None,
        'should_stop': never,
    }
    return TorchExpert.from_checkpoint(Checkpoint.open(directory), **(values | changes))


class RandomContext:
    """Keys and values in memory; hidden rows hold what the test wants."""

    def __init__(
        self,
        config: ModelConfig,
        n_rows: int,
        *,
        rope_delta: int = 0,
        left_pad: int = 0,
        hidden: float = 0.0,
        seed: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        text = config.expert
        self.shape = KvShape(
            n_layers=text.n_layers,
            n_kv_heads=text.n_kv_heads,
            head_dim=text.head_dim,
            n_rows=n_rows,
            left_pad=left_pad,
            rope_delta=rope_delta,
            dtype=str(dtype).removeprefix('torch.'),
        )
        generator = torch.Generator().manual_seed(seed)
        size = (text.n_layers, 2, text.n_kv_heads, n_rows, text.head_dim)
        self.rows = torch.randn(size, generator=generator).to(dtype)
        self.rows[:, :, :, :left_pad] = hidden

    def layer(self, i_layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[i_layer, 0], self.rows[i_layer, 1]

    def close(self) -> None:
        pass


def noise(seed: int = 2) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((64, 2)).astype(np.float32)
