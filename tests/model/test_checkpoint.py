# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
import hashlib
import json
from pathlib import Path
import struct
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from safetensors.torch import save_file
import torch

from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import CheckpointError
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.checkpoint import TensorLayout
from alpamayo_node.model.checkpoint import expected_tensors
from tests.model.builders import never
from tests.model.builders import random_tensors
from tests.model.builders import tiny_config
from tests.model.builders import wide_config
from tests.model.builders import write_checkpoint
from tests.model.builders import write_index

CONFIG = tiny_config()
TENSORS = random_tensors(CONFIG)
SINGLE = 'model.safetensors'
# One tensor of each kind: layer 1 stands for both layers.
KINDS = [name for name in expected_tensors(CONFIG) if '.layers.0.' not in name]


def silent(text: str) -> None:
    del text


def read_index(directory: Path) -> dict[str, str]:
    text = (directory / 'model.safetensors.index.json').read_text()
    return json.loads(text)['weight_map']


# ---------------------------------------------------------------------------- what is expected


def test_released_model_has_717_tensors_of_the_published_shapes() -> None:
    shapes = expected_tensors(wide_config(64))
    assert len(shapes) == 717
    # Shapes: public re-implementations of the released model, [out, in].
    layer = {
        'input_layernorm.weight': (1536,),
        'post_attention_layernorm.weight': (1536,),
        'self_attn.q_proj.weight': (2048, 1536),
        'self_attn.k_proj.weight': (1024, 1536),
        'self_attn.v_proj.weight': (1024, 1536),
        'self_attn.o_proj.weight': (1536, 2048),
        'self_attn.q_norm.weight': (128,),
        'self_attn.k_norm.weight': (128,),
        'mlp.gate_proj.weight': (6144, 1536),
        'mlp.up_proj.weight': (6144, 1536),
        'mlp.down_proj.weight': (1536, 6144),
    }
    expected = {
        f'expert.expert.layers.{i}.{name}': shape
        for i in range(64)
        for name, shape in layer.items()
    }
    expected |= {
        'expert.expert.norm.weight': (1536,),
        'expert.action_in_proj.encoder.trunk.0.weight': (512, 60),
        'expert.action_in_proj.encoder.trunk.0.bias': (512,),
        'expert.action_in_proj.encoder.trunk.2.weight': (512,),
        'expert.action_in_proj.encoder.trunk.3.weight': (512, 512),
        'expert.action_in_proj.encoder.trunk.3.bias': (512,),
        'expert.action_in_proj.encoder.trunk.5.weight': (512,),
        'expert.action_in_proj.encoder.trunk.6.weight': (1536, 512),
        'expert.action_in_proj.encoder.trunk.6.bias': (1536,),
        'expert.action_in_proj.norm.weight': (1536,),
        'expert.action_in_proj.norm.bias': (1536,),
        'expert.action_out_proj.weight': (2, 1536),
        'expert.action_out_proj.bias': (2,),
    }
    assert shapes == expected


def test_released_model_has_the_published_number_of_parameters() -> None:
    shapes = expected_tensors(wide_config(64))
    n_transformer = sum(
        torch.Size(shape).numel()
        for name, shape in shapes.items()
        if name.startswith('expert.expert.')
    )
    assert n_transformer == 2_416_133_632


def test_full_size_checkpoint_opens_without_reading_tensors(tmp_path: Path) -> None:
    config = wide_config(64)
    write_sparse(tmp_path, expected_tensors(config))
    (tmp_path / 'config.json').write_text(json.dumps(config.to_dict()))
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.n_bytes == 2 * (2_416_133_632 + 1_085_952 + 3_074)
    assert checkpoint.get('expert.expert.norm.weight').tolist() == [0.0] * 1536


def write_sparse(directory: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A file of the right length, all holes: zeros that take no space."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * torch.Size(shape).numel()
        header[name] = {'dtype': 'BF16', 'shape': shape, 'data_offsets': [start, end]}
    text = json.dumps(header).encode()
    with (directory / SINGLE).open('wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        file.truncate(8 + len(text) + end)


# ------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize('n_shards', [1, 3])
def test_tensors_are_read_bit_for_bit(n_shards: int, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, CONFIG, TENSORS, n_shards=n_shards))
    assert checkpoint.config == CONFIG
    for name, tensor in TENSORS.items():
        got = checkpoint.get(name)
        assert got.dtype == torch.bfloat16
        assert torch.equal(got.view(torch.int16), tensor.view(torch.int16))


def test_special_bit_patterns_survive(tmp_path: Path) -> None:
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    name = 'expert.expert.layers.0.mlp.gate_proj.weight'
    n = TENSORS[name].numel()
    odd = patterns[:: 65536 // n][:n].reshape(TENSORS[name].shape).view(torch.bfloat16)
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, CONFIG, TENSORS | {name: odd}))
    assert torch.equal(checkpoint.get(name).view(torch.int16), odd.view(torch.int16))


def test_layer_holds_its_eleven_tensors(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, CONFIG, TENSORS))
    layer = checkpoint.layer(1)
    assert len(layer) == 11
    for name, tensor in layer.items():
        assert torch.equal(tensor, TENSORS[f'expert.expert.layers.1.{name}'])


def test_other_parts_of_the_model_are_neither_needed_nor_read(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS, n_shards=2)
    weight_map = read_index(tmp_path)
    weight_map |= {'vlm.lm_head.weight': 'model-00009-of-00009.safetensors'}
    write_index(tmp_path, weight_map)
    (tmp_path / 'left-over.safetensors').write_bytes(b'junk')
    Checkpoint.open(tmp_path)


def test_files_of_a_download_cache_may_be_links(tmp_path: Path) -> None:
    blobs = write_checkpoint(tmp_path / 'blobs', CONFIG, TENSORS, n_shards=2)
    snapshot = tmp_path / 'snapshot'
    snapshot.mkdir()
    for i, file in enumerate(sorted(blobs.iterdir())):
        file.rename(blobs / f'hash{i}')
        (snapshot / file.name).symlink_to(Path('..') / 'blobs' / f'hash{i}')
    assert torch.equal(Checkpoint.open(snapshot).get(KINDS[0]), TENSORS[KINDS[0]])


def test_stored_constants_are_accepted_and_not_read(tmp_path: Path) -> None:
    constants = {
        'expert.action_space.accel_mean': torch.tensor(9.0),
        'expert.action_in_proj.sinus.0.freqs': torch.ones(1, 10),
        'expert.action_in_proj.timestep_fourier_encoder.freqs': torch.ones(1, 10),
    }
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, CONFIG, TENSORS | constants))
    assert checkpoint.n_bytes == sum(2 * tensor.numel() for tensor in TENSORS.values())


def test_flat_layout_is_read_by_option_only(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS, rename=lambda name: name.removeprefix('expert.'))
    checkpoint = Checkpoint.open(tmp_path, layout=TensorLayout.FLAT)
    for name, tensor in TENSORS.items():
        assert torch.equal(checkpoint.get(name), tensor)
    with pytest.raises(CheckpointError, match='missing'):
        Checkpoint.open(tmp_path)


def test_index_counts_where_both_forms_lie_side_by_side(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS, n_shards=2)
    (tmp_path / SINGLE).write_bytes(b'junk')
    Checkpoint.open(tmp_path)


# ------------------------------------------------------------------------- damage to the tensors


@pytest.mark.parametrize('n_shards', [1, 2])
@pytest.mark.parametrize('name', KINDS)
def test_missing_tensor_is_named(name: str, n_shards: int, tmp_path: Path) -> None:
    rest = {other: tensor for other, tensor in TENSORS.items() if other != name}
    write_checkpoint(tmp_path, CONFIG, rest, n_shards=n_shards)
    with pytest.raises(CheckpointError, match='1 of 35 tensors are missing') as caught:
        Checkpoint.open(tmp_path)
    assert name in str(caught.value)


@pytest.mark.parametrize('name', KINDS)
def test_renamed_tensor_is_named(name: str, tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path, CONFIG, TENSORS, rename=lambda other: other + '_v2' if other == name else other
    )
    with pytest.raises(CheckpointError, match='missing') as caught:
        Checkpoint.open(tmp_path)
    assert name in str(caught.value)


@pytest.mark.parametrize('name', KINDS)
def test_tensor_of_another_shape_is_named_with_both_shapes(name: str, tmp_path: Path) -> None:
    shape = list(TENSORS[name].shape)
    wrong = torch.zeros(shape[0] + 1, *shape[1:], dtype=torch.bfloat16)
    write_checkpoint(tmp_path, CONFIG, TENSORS | {name: wrong})
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(tmp_path)
    for part in (name, str(list(wrong.shape)), str(shape), SINGLE):
        assert part in str(caught.value)


def test_transposed_tensor_is_refused(tmp_path: Path) -> None:
    name = 'expert.expert.layers.0.mlp.up_proj.weight'
    write_checkpoint(tmp_path, CONFIG, TENSORS | {name: TENSORS[name].T})
    with pytest.raises(CheckpointError, match=r'\[64, 96\], config.json asks for \[96, 64\]'):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.int16])
@pytest.mark.parametrize('name', KINDS)
def test_tensor_of_another_dtype_is_named(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS | {name: TENSORS[name].to(dtype)})
    with pytest.raises(CheckpointError, match='must be BF16') as caught:
        Checkpoint.open(tmp_path)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    'name',
    [
        'expert.expert.layers.2.input_layernorm.weight',
        'expert.expert.layers.0.self_attn.q_proj.bias',
        'expert.expert.embed_tokens.weight',
        'expert.action_in_proj.encoder.trunk.8.weight',
    ],
)
def test_unexpected_tensor_of_the_expert_is_named(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS | {name: torch.zeros(2, dtype=torch.bfloat16)})
    with pytest.raises(CheckpointError, match='does not account for') as caught:
        Checkpoint.open(tmp_path)
    assert name in str(caught.value)


def test_unexpected_tensor_that_the_index_hides_is_found(tmp_path: Path) -> None:
    extra = {'expert.expert.layers.9.mlp.up_proj.weight': torch.zeros(2, dtype=torch.bfloat16)}
    write_checkpoint(tmp_path, CONFIG, TENSORS | extra, n_shards=2)
    weight_map = read_index(tmp_path)
    del weight_map[next(iter(extra))]
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match='does not account for'):
        Checkpoint.open(tmp_path)


# --------------------------------------------------------------------------- damage to the files


def test_every_missing_shard_is_listed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS, n_shards=4)
    gone = ['model-00002-of-00004.safetensors', 'model-00004-of-00004.safetensors']
    for file in gone:
        (tmp_path / file).unlink()
    with pytest.raises(CheckpointError, match='2 of 4 files') as caught:
        Checkpoint.open(tmp_path)
    assert all(file in str(caught.value) for file in gone)
    assert '00001' not in str(caught.value)


def test_link_to_nothing_is_a_missing_shard(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS, n_shards=2)
    shard = tmp_path / 'model-00001-of-00002.safetensors'
    shard.unlink()
    shard.symlink_to(tmp_path / 'blobs' / 'gone')
    with pytest.raises(CheckpointError, match='links to nothing'):
        Checkpoint.open(tmp_path)


def test_tensor_that_the_index_promises_in_the_wrong_shard_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS, n_shards=2)
    weight_map = read_index(tmp_path)
    files = sorted(set(weight_map.values()))
    weight_map[KINDS[0]] = files[1 - files.index(weight_map[KINDS[0]])]
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(tmp_path)
    assert KINDS[0] in str(caught.value)


@pytest.mark.parametrize(
    'file',
    [
        '../secret.safetensors',
        '/etc/passwd',
        'sub/model.safetensors',
        'sub\\model.safetensors',
        '..',
        '.',
        '',
        'C:model.safetensors',
        'a\0b',
        7,
        None,
    ],
)
def test_index_that_leads_elsewhere_is_refused(file: object, tmp_path: Path) -> None:
    inner = write_checkpoint(tmp_path / 'inner', CONFIG, TENSORS, n_shards=2)
    save_file(TENSORS, tmp_path / 'secret.safetensors')
    write_index(inner, read_index(inner) | {'vlm.lm_head.weight': file})
    with pytest.raises(CheckpointError, match='plain file name') as caught:
        Checkpoint.open(inner)
    assert repr(file) in str(caught.value)


@pytest.mark.parametrize('text', ['', '{', '[]', '{}', '{"weight_map": []}'])
def test_index_without_a_map_is_refused(text: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS, n_shards=2)
    (tmp_path / 'model.safetensors.index.json').write_text(text)
    with pytest.raises(CheckpointError, match='weight_map'):
        Checkpoint.open(tmp_path)


def lfs_pointer(data: bytes) -> bytes:
    return (
        b'version https://git-lfs.github.com/spec/v1\n'
        b'oid sha256:' + hashlib.sha256(data).hexdigest().encode() + b'\nsize 4966188776\n'
    )


def with_header(data: bytes, header: bytes) -> bytes:
    (n_old,) = struct.unpack('<Q', data[:8])
    return struct.pack('<Q', len(header)) + header + data[8 + n_old :]


def edited(data: bytes, edit: Callable[[dict], object]) -> bytes:
    (n_header,) = struct.unpack('<Q', data[:8])
    header = json.loads(data[8 : 8 + n_header])
    edit(header)
    return with_header(data, json.dumps(header).encode())


def set_entry(**changes: object) -> Callable[[dict], object]:
    return lambda header: header[KINDS[0]].update(changes)


@pytest.mark.parametrize(
    ('damage', 'words'),
    [
        (lfs_pointer, 'git lfs pull'),
        (lambda data: b'', 'not a safetensors file'),
        (lambda data: data[:5], 'not a safetensors file'),
        (lambda data: b'<html>' + data, 'not a safetensors file'),
        (lambda data: b'PK\3\4' + data, 'not a safetensors file'),
        (lambda data: data[:100], 'truncated inside its header'),
        (lambda data: data[:-1], 'truncated'),
        (lambda data: data[: len(data) // 2], 'truncated'),
        (lambda data: data + b'\0', 'after its last tensor'),
        (lambda data: with_header(data, b'{"a": '), 'not JSON'),
        (lambda data: with_header(data, b'\xff\xfe'), 'not JSON'),
        (lambda data: with_header(data, b'[]'), 'not a JSON object'),
        (lambda data: edited(data, lambda header: header.update(x=3)), 'does not describe x'),
        (lambda data: edited(data, set_entry(shape=None)), 'does not describe'),
        (lambda data: edited(data, set_entry(data_offsets=[0])), 'does not describe'),
        (lambda data: edited(data, set_entry(data_offsets=[4, 0])), 'cannot lie in bytes'),
        (lambda data: edited(data, set_entry(data_offsets=[0, 2])), 'cannot lie in bytes'),
        (lambda data: edited(data, set_entry(shape=[-64])), 'cannot lie in bytes'),
        (lambda data: edited(data, lambda header: header.pop(KINDS[0])), 'without gaps'),
    ],
)
def test_damaged_file_is_named(
    damage: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path, CONFIG, TENSORS) / SINGLE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=words) as caught:
        Checkpoint.open(tmp_path)
    assert str(path) in str(caught.value)


def test_damaged_shard_is_found_before_any_tensor_is_used(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS, n_shards=3)
    path = tmp_path / 'model-00003-of-00003.safetensors'
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=r'00003-of-00003\.safetensors: is truncated'):
        Checkpoint.open(tmp_path)


def test_directory_without_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'config.json').write_text(json.dumps(CONFIG.to_dict()))
    with pytest.raises(CheckpointError, match='holds neither'):
        Checkpoint.open(tmp_path)


def test_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'config\.json'):
        Checkpoint.open(tmp_path)


def test_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match='not a directory'):
        Checkpoint.open(tmp_path / 'nowhere')


def test_file_that_shrinks_after_opening_is_found(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, CONFIG, TENSORS))
    path = tmp_path / SINGLE
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match='whole when it was opened'):
        checkpoint.fingerprint(never, silent)


# ---------------------------------------------------------------------------------- fingerprint


def test_fingerprint_is_the_documented_hash(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, CONFIG, TENSORS))
    config = json.dumps(CONFIG.to_dict(), sort_keys=True, separators=(',', ':'))
    text = b'alpamayo-expert-1\n' + config.encode() + b'\n'
    for name in sorted(TENSORS):
        tensor = TENSORS[name]
        text += f'{name} BF16 {list(tensor.shape)}\n'.encode()
        text += tensor.contiguous().view(torch.int16).numpy().tobytes()
    expected = 'sha256:' + hashlib.sha256(text).hexdigest()
    assert checkpoint.fingerprint(never, silent) == expected


def test_fingerprint_does_not_depend_on_shards_or_layout(tmp_path: Path) -> None:
    directories = [
        write_checkpoint(tmp_path / 'one', CONFIG, TENSORS),
        write_checkpoint(tmp_path / 'three', CONFIG, TENSORS, n_shards=3),
    ]
    prints = {Checkpoint.open(each).fingerprint(never, silent) for each in directories}
    flat = write_checkpoint(
        tmp_path / 'flat', CONFIG, TENSORS, rename=lambda name: name.removeprefix('expert.')
    )
    prints.add(Checkpoint.open(flat, layout=TensorLayout.FLAT).fingerprint(never, silent))
    assert len(prints) == 1


def test_fingerprint_changes_with_every_tensor_and_with_the_config(tmp_path: Path) -> None:
    prints = {
        Checkpoint.open(write_checkpoint(tmp_path, CONFIG, TENSORS)).fingerprint(never, silent)
    }
    for name in KINDS:
        changed = TENSORS[name].clone()
        changed.view(torch.int16).reshape(-1)[-1] ^= 1
        write_checkpoint(tmp_path, CONFIG, TENSORS | {name: changed})
        prints.add(Checkpoint.open(tmp_path).fingerprint(never, silent))
    write_checkpoint(tmp_path, tiny_config(n_steps=5), TENSORS)
    prints.add(Checkpoint.open(tmp_path).fingerprint(never, silent))
    assert len(prints) == len(KINDS) + 2


def test_fingerprint_stops_when_asked(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, CONFIG, TENSORS))
    with pytest.raises(Cancelled):
        checkpoint.fingerprint(lambda: True, silent)


# --------------------------------------------------------------------------------------- memory

_PROBE = """
import resource, sys
from pathlib import Path
from alpamayo_node.model.checkpoint import Checkpoint
checkpoint = Checkpoint.open(Path(sys.argv[1]))
checkpoint.fingerprint(lambda: False, lambda text: None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in sys.argv[2:]:
    checkpoint.get(name)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_reading_one_by_one_needs_little_more_than_the_largest_tensor(tmp_path: Path) -> None:
    config = wide_config(1)
    write_sparse(tmp_path, expected_tensors(config))
    (tmp_path / 'config.json').write_text(json.dumps(config.to_dict()))
    names = list(expected_tensors(config))
    command = [sys.executable, '-c', _PROBE, str(tmp_path), *names]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    largest = 2 * 6144 * 1536
    assert int(output) < 2 * largest


def test_builder_writes_what_safetensors_reads(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, TENSORS)
    stored = load_file(tmp_path / SINGLE)
    assert stored.keys() == TENSORS.keys()
