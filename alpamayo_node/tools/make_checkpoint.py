# SPDX-License-Identifier: Apache-2.0
"""
Make a checkpoint with random weights in the released layout: for tests, demos and benchmarks.

Names, shapes, dtypes, shards, index and configuration are the released model's; the weights are
noise, scaled so that the flow stays tame and its plans pass the gate:

- in-projection columns that read a Fourier feature of frequency f are divided by f, or the
  velocity would turn so fast with x that no two roundings gave the same plan;
- branches that add to the residual stream shrink with the depth;
- query norms are raised, so that attention picks rows of the context instead of averaging them
  all away, and another context gives another plan;
- the out-projection keeps velocities around one half.

The index also names text-model tensors in shards that are not written: no reader may need them.
"""

from argparse import ArgumentParser
from argparse import Namespace
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace
import json
import math
from pathlib import Path

from safetensors.torch import save_file
import torch

from alpamayo_node.contracts import ActionSpace
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.checkpoint import expected_tensors
from alpamayo_node.model.config import InProjConfig
from alpamayo_node.model.config import ModelConfig
from alpamayo_node.model.config import TextConfig

SHARD_BYTES = 1_000_000_000
QUERY_GAIN = 2.0
VELOCITY = 0.5

_SPACE = ActionSpace(
    n_waypoints=64,
    dt_ns=100_000_000,
    accel_mean=0.02902694707164455,
    accel_std=0.6810426736454882,
    curvature_mean=0.0002692167976330542,
    curvature_std=0.026148280660833106,
    accel_bounds=(-9.8, 9.8),
    curvature_bounds=(-0.33, 0.33),
)
_EXPERT = TextConfig(
    n_layers=64,
    hidden=1536,
    intermediate=6144,
    n_heads=16,
    n_kv_heads=8,
    head_dim=128,
    vocab=155_776,
    max_positions=262_144,
    rms_eps=1e-6,
    rope_theta=5e6,
    mrope_section=(24, 20, 20),
)
_VLM = replace(_EXPERT, hidden=5120, intermediate=25_600, n_heads=64)
_TINY = replace(
    _EXPERT,
    n_layers=3,
    hidden=96,
    intermediate=192,
    n_heads=4,
    n_kv_heads=2,
    head_dim=32,
    vocab=512,
    mrope_section=(6, 5, 5),
)
SUPER = ModelConfig(
    expert=_EXPERT,
    vlm=_VLM,
    in_proj=InProjConfig(hidden=512, n_layers=2, n_features=20, max_freq=100.0),
    action_space=_SPACE,
)
PRESETS = {
    'tiny': ModelConfig(
        expert=_TINY,
        vlm=replace(_TINY, hidden=128, n_heads=8),
        in_proj=InProjConfig(hidden=64, n_layers=2, n_features=20, max_freq=100.0),
        action_space=_SPACE,
    ),
    'wide4': replace(SUPER, expert=replace(_EXPERT, n_layers=4), vlm=replace(_VLM, n_layers=4)),
    'super': SUPER,
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument('directory', type=Path, metavar='DIR', help='must not exist, or be empty')
    parser.add_argument(
        '--preset',
        choices=tuple(PRESETS),
        default='tiny',
        help='tiny: 3 narrow layers; wide4: 4 of full width; super: all 64, 4.9 GB',
    )
    parser.add_argument('--seed', type=int, default=0, help='of the weights')


def run(args: Namespace) -> int:
    """Write the checkpoint, telling each shard."""
    write_checkpoint(args.directory, args.preset, args.seed, print)
    return 0


def write_checkpoint(
    directory: Path, preset: str, seed: int, report: Callable[[str], None]
) -> None:
    """
    Write a random checkpoint; memory holds one shard at a time.

    :param directory: made if it does not exist; must be empty
    :param preset: a key of `PRESETS`
    :param seed: same seed, same bytes
    :param report: receives progress in words
    :raises ConfigError: the folder holds something already
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ConfigError('directory', str(directory), 'must be empty')
    config = PRESETS[preset]
    shards = list(_shards(expected_tensors(config)))
    generator = torch.Generator().manual_seed(seed)
    weight_map = _text_model_map(config)
    n_bytes = 0
    for i_shard, names in enumerate(shards):
        file = f'model-{i_shard + 1:05}-of-{len(shards) + 1:05}.safetensors'
        tensors = {
            name: _draw(name, shape, config, generator).to(torch.bfloat16)
            for name, shape in names.items()
        }
        save_file(tensors, directory / file, metadata={'format': 'pt'})
        n_bytes += sum(tensor.nbytes for tensor in tensors.values())
        weight_map |= dict.fromkeys(names, file)
        report(f'{file}: {len(names)} tensors; {n_bytes / 1e9:.2f} GB in all')
    index = {'metadata': {'total_size': n_bytes}, 'weight_map': weight_map}
    (directory / 'model.safetensors.index.json').write_text(json.dumps(index, indent=1))
    (directory / 'config.json').write_text(json.dumps(config.to_dict(), indent=1))


def _shards(shapes: dict[str, tuple[int, ...]]) -> Iterator[dict[str, tuple[int, ...]]]:
    shard: dict[str, tuple[int, ...]] = {}
    n_bytes = 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        if shard and n_bytes + size > SHARD_BYTES:
            yield shard
            shard, n_bytes = {}, 0
        shard[name] = shape
        n_bytes += size
    yield shard


def _draw(
    name: str, shape: tuple[int, ...], config: ModelConfig, generator: torch.Generator
) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith('trunk.0.weight'):
        n_freqs = config.in_proj.n_features // 2
        freqs = torch.logspace(0, math.log10(config.in_proj.max_freq), n_freqs)
        return noise / math.sqrt(shape[1]) / torch.cat([freqs, freqs]).repeat(3)
    if name.endswith('action_out_proj.weight'):
        return noise * VELOCITY / math.sqrt(shape[1])
    if name.endswith(('o_proj.weight', 'down_proj.weight')):
        return noise / math.sqrt(shape[1] * config.expert.n_layers)
    if len(shape) == 2:
        return noise / math.sqrt(shape[1])
    if name.endswith('bias'):
        return 0.05 * noise
    return (QUERY_GAIN if name.endswith('q_norm.weight') else 1.0) + 0.05 * noise


def _text_model_map(config: ModelConfig) -> dict[str, str]:
    """Name some tensors of the text model, in a shard that is not there."""
    layers = range(config.vlm.n_layers)
    names = [f'vlm.model.language_model.layers.{i}.input_layernorm.weight' for i in layers]
    return dict.fromkeys(['vlm.lm_head.weight', *names], 'model-text.safetensors')
