# SPDX-License-Identifier: Apache-2.0
"""
Open a checkpoint directory, prove it complete, and hand out the expert's tensors one by one.

A directory holds `config.json` and either `model.safetensors.index.json` with the shards that it
names, or a single `model.safetensors`; with both, the index counts. Only shards that hold tensors
of the expert must be there. All checks of names, shapes, dtypes, files and lengths happen in
`open`; the bytes stay on disk until they are asked for. There is no lenient mode.

Names and shapes: 11 tensors per layer, the final norm, the two projections; 717 for the released
model. `*.freqs` and `expert.action_space.*` are constants that some writers store; they are
accepted and not read, because `buffers` makes them from the configuration. Any other `expert.*` is
refused.

Source of the names: mincai/TensorRT-Edge-LLM, `tensorrt_edgellm/checkpoint/checkpoint_utils.py`.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
import hashlib
import json
from pathlib import Path
import time

import torch

from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import CheckpointError
from alpamayo_node.model.config import ModelConfig
from alpamayo_node.model.config import TextConfig
from alpamayo_node.model.safetensors_file import TensorEntry
from alpamayo_node.model.safetensors_file import read_chunks
from alpamayo_node.model.safetensors_file import read_header
from alpamayo_node.model.safetensors_file import read_into

EXPERT = 'expert.expert.'
IN_PROJ = 'expert.action_in_proj.'
OUT_PROJ = 'expert.action_out_proj.'
_CONFIG = 'config.json'
_INDEX = 'model.safetensors.index.json'
_SINGLE = 'model.safetensors'
_N_CHUNK_BYTES = 8 << 20
_REPORT_PERIOD_S = 1.0


class TensorLayout(Enum):
    """How the expert's tensors are called in the files."""

    SUPER = 'super'
    """Alpamayo 2 Super: `expert.expert.*`, `expert.action_in_proj.*`."""
    FLAT = 'flat'
    """Alpamayo R1 and 1.5: `expert.*`, `action_in_proj.*`, beside a `config.json` of 2 Super."""

    def stored(self, name: str) -> str:
        """
        Translate a name of `expected_tensors` into the one in the files.

        :param name: name in the layout of Alpamayo 2 Super
        :return: name in this layout
        """
        return name if self is TensorLayout.SUPER else name.removeprefix('expert.')

    def is_ours(self, stored: str) -> bool:
        """
        Tell whether a tensor of the files belongs to the expert.

        :param stored: name in this layout
        :return: whether it must be known
        """
        prefixes = ('expert.', 'action_in_proj.', 'action_out_proj.', 'action_space.')
        return stored.startswith(prefixes[:1] if self is TensorLayout.SUPER else prefixes)

    def is_constant(self, stored: str) -> bool:
        """
        Tell whether a tensor is one that may be stored, but is not read.

        :param stored: name in this layout
        :return: whether to pass over it
        """
        return stored.endswith('.freqs') or stored.startswith(self.stored('expert.action_space.'))


def layer_prefix(i_layer: int) -> str:
    """
    Name what all tensors of one layer begin with.

    :param i_layer: index of the layer
    :return: prefix, with the dot
    """
    return f'{EXPERT}layers.{i_layer}.'


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """
    List every tensor that a checkpoint of the expert must hold; all are bfloat16.

    :param config: the model
    :return: shape, [out, in] for weights of linear layers, by name
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for i_layer in range(config.expert.n_layers):
        prefix = layer_prefix(i_layer)
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config.expert).items()}
    shapes[EXPERT + 'norm.weight'] = (config.expert.hidden,)
    shapes |= {IN_PROJ + name: shape for name, shape in _in_proj_shapes(config).items()}
    shapes[OUT_PROJ + 'weight'] = (2, config.expert.hidden)
    shapes[OUT_PROJ + 'bias'] = (2,)
    return shapes


def _layer_shapes(text: TextConfig) -> dict[str, tuple[int, ...]]:
    return {
        'input_layernorm.weight': (text.hidden,),
        'self_attn.q_proj.weight': (text.q_dim, text.hidden),
        'self_attn.k_proj.weight': (text.kv_dim, text.hidden),
        'self_attn.v_proj.weight': (text.kv_dim, text.hidden),
        'self_attn.o_proj.weight': (text.hidden, text.q_dim),
        'self_attn.q_norm.weight': (text.head_dim,),
        'self_attn.k_norm.weight': (text.head_dim,),
        'post_attention_layernorm.weight': (text.hidden,),
        'mlp.gate_proj.weight': (text.intermediate, text.hidden),
        'mlp.up_proj.weight': (text.intermediate, text.hidden),
        'mlp.down_proj.weight': (text.hidden, text.intermediate),
    }


def _in_proj_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Trunk positions: 0 Linear, 1 SiLU, then (RMSNorm, Linear, SiLU) at 2, 3, 4; 5, 6, 7; ..."""
    in_proj, n_out = config.in_proj, config.expert.hidden
    shapes: dict[str, tuple[int, ...]] = {
        'encoder.trunk.0.weight': (in_proj.hidden, 3 * in_proj.n_features),
        'encoder.trunk.0.bias': (in_proj.hidden,),
    }
    for i_layer in range(in_proj.n_layers):
        width = n_out if i_layer == in_proj.n_layers - 1 else in_proj.hidden
        shapes[f'encoder.trunk.{3 * i_layer + 2}.weight'] = (in_proj.hidden,)
        shapes[f'encoder.trunk.{3 * i_layer + 3}.weight'] = (width, in_proj.hidden)
        shapes[f'encoder.trunk.{3 * i_layer + 3}.bias'] = (width,)
    return shapes | {'norm.weight': (n_out,), 'norm.bias': (n_out,)}


@dataclass(frozen=True)
class _Located:
    path: Path
    entry: TensorEntry


class Checkpoint:
    """A complete checkpoint on disk; reads nothing but what is asked for."""

    def __init__(
        self, config: ModelConfig, config_values: object, located: Mapping[str, _Located]
    ) -> None:
        """Not for callers: `open` is the only way that checks."""
        self.config = config
        self._config_values = config_values
        self._located = located

    @classmethod
    def open(cls, directory: Path, *, layout: TensorLayout = TensorLayout.SUPER) -> 'Checkpoint':
        """
        Check a checkpoint whole.

        :param directory: with `config.json` and safetensors
        :param layout: how the tensors are called
        :return: ready to be read
        :raises ConfigError: a value of `config.json` is wrong
        :raises CheckpointError: a file or tensor is missing, damaged or not of this model
        """
        if not directory.is_dir():
            raise CheckpointError(f'{directory}: is not a directory; give the one of config.json')
        config = ModelConfig.from_file(directory / _CONFIG)
        files = _find_files(directory)
        _require_names(directory, files, config, layout)
        shards = {
            layout.stored(name): files[layout.stored(name)] for name in expected_tensors(config)
        }
        headers = _read_headers(directory, set(shards.values()), layout, files)
        located = {
            name: _locate(name, shape, layout.stored(name), headers, shards)
            for name, shape in expected_tensors(config).items()
        }
        values = json.loads((directory / _CONFIG).read_text(encoding='utf-8'))
        return cls(config, values, located)

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors of the expert."""
        return sum(each.entry.stop - each.entry.start for each in self._located.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """
        Tell a tensor's shape without reading it.

        :param name: of `expected_tensors`
        :return: the shape
        """
        return self._located[name].entry.shape

    def get(self, name: str) -> torch.Tensor:
        """
        Read one tensor.

        :param name: of `expected_tensors`
        :return: bfloat16, the stored bits
        :raises CheckpointError: the file has changed since it was opened
        """
        out = torch.empty(self.shape(name), dtype=torch.bfloat16)
        self.read_into(name, out)
        return out

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """
        Read one tensor into memory that is already there, such as a part of a fused weight.

        :param name: of `expected_tensors`
        :param out: contiguous bfloat16 of the tensor's shape
        :raises CheckpointError: the file has changed since it was opened
        """
        located = self._located[name]
        assert out.shape == self.shape(name)
        assert out.dtype == torch.bfloat16
        read_into(located.path, name, located.entry, out)

    def layer(self, i_layer: int) -> dict[str, torch.Tensor]:
        """
        Read all tensors of one layer.

        :param i_layer: index of the layer
        :return: bfloat16 tensors by the name behind `layers.{i}.`
        :raises CheckpointError: a file has changed since it was opened
        """
        prefix = layer_prefix(i_layer)
        return {name: self.get(prefix + name) for name in _layer_shapes(self.config.expert)}

    def fingerprint(self, should_stop: Callable[[], bool], progress: Callable[[str], None]) -> str:
        """
        Hash what the expert is made of; needs one pass over its bytes, about 1 GB/s per core.

        SHA-256 over, in this order: the line `alpamayo-expert-1`; `config.json` with keys sorted
        and no blanks, and a newline; then for every tensor in the order of its name the line
        `name dtype [shape]` and its bytes as stored. How the tensors are spread over shards, how
        they are called there, and the rest of the model do not count.

        :param should_stop: polled every 8 MiB
        :param progress: receives progress in words, about once a second
        :return: 'sha256:' and 64 hexadecimal digits
        :raises Cancelled: `should_stop` became true
        :raises CheckpointError: a file has changed since it was opened
        """
        config = json.dumps(self._config_values, sort_keys=True, separators=(',', ':'))
        digest = hashlib.sha256(f'alpamayo-expert-1\n{config}\n'.encode())
        buffer, n_done, reported_s = bytearray(_N_CHUNK_BYTES), 0, time.monotonic()
        for name, located in sorted(self._located.items()):
            entry = located.entry
            digest.update(f'{name} {entry.dtype} {list(entry.shape)}\n'.encode())
            for chunk in read_chunks(located.path, name, entry, buffer):
                if should_stop():
                    raise Cancelled('stopped while hashing the checkpoint')
                digest.update(chunk)
                n_done += len(chunk)
                if time.monotonic() - reported_s >= _REPORT_PERIOD_S:
                    reported_s = time.monotonic()
                    progress(f'hashed {n_done / 1e9:.1f} of {self.n_bytes / 1e9:.1f} GB')
        return f'sha256:{digest.hexdigest()}'


def _find_files(directory: Path) -> dict[str, str]:
    """File name by stored tensor name."""
    index = directory / _INDEX
    if index.is_file():
        return _read_index(index)
    single = directory / _SINGLE
    if not single.is_file():
        raise CheckpointError(f'{directory}: holds neither {_INDEX} nor {_SINGLE}')
    return dict.fromkeys(read_header(single), _SINGLE)


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding='utf-8'))['weight_map']
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{index}: must be JSON with a "weight_map" ({error})') from error
    if not isinstance(weight_map, dict):
        raise CheckpointError(f'{index}: "weight_map" must be an object')
    for name, file in weight_map.items():
        if not _is_plain_file_name(file):
            raise CheckpointError(
                f'{index}: {name} is said to be in {file!r}; must be a plain file name beside '
                'the index'
            )
    return weight_map


def _is_plain_file_name(name: object) -> bool:
    if not isinstance(name, str) or name in ('', '.', '..'):
        return False
    return not any(sign in name for sign in '/\\\0') and ':' not in name[:2]


def _require_names(
    directory: Path, files: Mapping[str, str], config: ModelConfig, layout: TensorLayout
) -> None:
    expected = {layout.stored(name) for name in expected_tensors(config)}
    missing = expected - files.keys()
    if missing:
        raise CheckpointError(
            f'{directory}: {len(missing)} of {len(expected)} tensors are missing: '
            f'{_listing(missing)}; is it a checkpoint of Alpamayo 2 Super, and all of it?'
        )
    _require_known(directory, files, expected, layout)


def _require_known(
    path: Path, names: Iterable[str], expected: set[str], layout: TensorLayout
) -> None:
    unknown = {
        name
        for name in names
        if layout.is_ours(name) and name not in expected and not layout.is_constant(name)
    }
    if unknown:
        raise CheckpointError(
            f'{path}: holds tensors that config.json does not account for: {_listing(unknown)}'
        )


def _listing(names: Iterable[str]) -> str:
    ordered = sorted(names)
    rest = f' and {len(ordered) - 5} more' if len(ordered) > 5 else ''
    return ', '.join(ordered[:5]) + rest


def _read_headers(
    directory: Path, shards: set[str], layout: TensorLayout, files: Mapping[str, str]
) -> dict[str, tuple[Path, dict[str, TensorEntry]]]:
    absent = [shard for shard in sorted(shards) if not (directory / shard).is_file()]
    if absent:
        raise CheckpointError(
            f'{directory}: {len(absent)} of {len(shards)} files that hold the expert are missing '
            f'(or links to nothing): {", ".join(absent)}; download them'
        )
    headers = {
        shard: (directory / shard, read_header(directory / shard)) for shard in sorted(shards)
    }
    for path, header in headers.values():
        _require_known(path, header, set(files), layout)
    return headers


def _locate(
    name: str,
    shape: tuple[int, ...],
    stored: str,
    headers: Mapping[str, tuple[Path, dict[str, TensorEntry]]],
    shards: Mapping[str, str],
) -> _Located:
    path, header = headers[shards[stored]]
    if stored not in header:
        raise CheckpointError(f'{path}: does not hold {stored}, though the index says so')
    entry = header[stored]
    if entry.shape != shape:
        raise CheckpointError(
            f'{path}: {stored} has shape {list(entry.shape)}, config.json asks for {list(shape)}'
        )
    if entry.dtype != 'BF16':
        raise CheckpointError(
            f'{path}: {stored} is {entry.dtype}, must be BF16; convert the checkpoint'
        )
    return _Located(path, entry)
