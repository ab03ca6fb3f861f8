# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from dataclasses import replace
import hashlib
import json
import os
from pathlib import Path
import re
import signal
import struct
import subprocess
import sys
import time

import pytest
from safetensors import safe_open
import torch

from alpamayo_node.contracts import ContextInfo
from alpamayo_node.contracts import ContextStatus
from alpamayo_node.contracts import KvShape
from alpamayo_node.contracts import PoseSample
from alpamayo_node.contracts import Transport
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.model.context_file import FileStore
from alpamayo_node.model.context_file import digest_of
from alpamayo_node.model.context_file import history_from_json
from alpamayo_node.model.context_file import read_context_info
from alpamayo_node.model.context_file import write_context_file

ROOT = Path(__file__).parents[2]
SHAPE = KvShape(
    n_layers=2, n_kv_heads=2, head_dim=8, n_rows=12, left_pad=3, rope_delta=-5, dtype='bfloat16'
)
CONTEXT = ContextInfo(
    context_id='drive 7 “é”',
    generation=2**64 - 1,
    t0_ns=1_700_000_000_123_456_789,
    frame_id='map',
    status=ContextStatus.READY,
    transport=Transport.FILE,
    location='a.safetensors',
    shape=SHAPE,
    model_fingerprint='sha256:m',
    prompt_fingerprint='p',
    digest='',
    seed=2**64 - 2,
    reasoning='Slow down.\nThen turn left.',
    history=(
        PoseSample(1, (0.1, 1e-300, -3.0), (0.0, 0.0, 0.6, 0.8), None),
        PoseSample(2, (1 / 3, 2.0, 3.0), (0.0, 0.0, 0.0, 1.0), -0.25),
    ),
)


def layers(shape: KvShape = SHAPE, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    size = (shape.n_kv_heads, shape.n_rows, shape.head_dim)
    dtype = getattr(torch, shape.dtype)

    def draw() -> torch.Tensor:
        return torch.randn(size, generator=generator).to(dtype)

    return [(draw(), draw()) for _ in range(shape.n_layers)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / 'a.safetensors'
    write_context_file(path, CONTEXT, layers())
    return path


def refuse(path: Path, reason: Reason, announced: ContextInfo = CONTEXT) -> Refusal:
    with pytest.raises(Refusal) as caught:
        FileStore(path.parent).open(announced)
    assert caught.value.reason is reason, caught.value
    return caught.value


def rewrite(path: Path, change: Callable[[dict], object]) -> None:
    """Change the header and leave the tensors."""
    content = path.read_bytes()
    (length,) = struct.unpack('<Q', content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(text)) + text + content[8 + length :])


@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
def test_context_file_round_trip_keeps_every_bit(tmp_path: Path, dtype: str) -> None:
    context = replace(CONTEXT, shape=replace(SHAPE, dtype=dtype))
    written = layers(context.shape)
    write_context_file(tmp_path / 'a.safetensors', context, written)
    assert read_context_info(tmp_path / 'a.safetensors') == context
    source = FileStore(tmp_path).open(context)
    assert source.shape == context.shape
    for i_layer, (key, value) in enumerate(written):
        read_key, read_value = source.layer(i_layer)
        assert read_key.dtype == key.dtype
        assert torch.equal(read_key.view(torch.uint8), key.view(torch.uint8))
        assert torch.equal(read_value.view(torch.uint8), value.view(torch.uint8))
    source.close()


def test_context_file_without_seed_and_history_reads_back_without(tmp_path: Path) -> None:
    context = replace(CONTEXT, seed=None, history=())
    write_context_file(tmp_path / 'a.safetensors', context, layers())
    assert read_context_info(tmp_path / 'a.safetensors') == context


def test_context_file_is_read_by_the_safetensors_library(path: Path) -> None:
    with safe_open(path, framework='pt') as file:
        assert torch.equal(file.get_tensor('layers.1.value'), layers()[1][1])
        assert file.metadata()['t0_ns'] == '1700000000123456789'


def test_context_file_of_the_document_is_read_by_its_example(path: Path, capsys) -> None:
    text = (ROOT / 'docs' / 'context_file.md').read_text(encoding='utf-8')
    (example,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
    exec(compile(example, 'example', 'exec'), {'FILE': str(path)})
    assert capsys.readouterr().out == 'drive 7 “é” 12 rows (2, 12, 8)\n'


def test_context_file_announcement_decides_what_may_change_between_replays(path: Path) -> None:
    announced = replace(
        CONTEXT, context_id='again', generation=1, t0_ns=5, seed=None, history=(), reasoning=''
    )
    FileStore(path.parent).open(announced).close()


@pytest.mark.parametrize(
    'name', ['', '.', '..', '../a.safetensors', '/etc/passwd', 'x/a.safetensors', 'a\0b', 'a\\b']
)
def test_context_file_location_that_is_no_plain_name_is_refused(path: Path, name: str) -> None:
    refusal = refuse(path, Reason.CONTEXT_UNREADABLE, replace(CONTEXT, location=name))
    assert 'plain file name' in refusal.text


def test_context_file_that_is_no_plain_file_is_refused(path: Path) -> None:
    folder = path.parent
    (folder / 'link').symlink_to(path)
    (folder / 'folder').mkdir()
    os.mkfifo(folder / 'fifo')
    for name, hint in (
        ('link', 'links are not followed'),
        ('folder', 'no regular file'),
        ('fifo', 'no regular file'),
        ('absent', 'No such file'),
    ):
        refusal = refuse(path, Reason.CONTEXT_UNREADABLE, replace(CONTEXT, location=name))
        assert hint in refusal.text


@pytest.mark.parametrize('n_bytes', [0, 7, 8, 100, -1, -200])
def test_context_file_cut_anywhere_is_refused(path: Path, n_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:n_bytes])
    refuse(path, Reason.CONTEXT_UNREADABLE)


def test_context_file_with_more_or_other_bytes_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for content in (whole + b'x', b'version https://git-lfs.github.com/spec/v1\n', b'\xff' * 99):
        path.write_bytes(content)
        refuse(path, Reason.CONTEXT_UNREADABLE)


@pytest.mark.parametrize('field', ['format', 'version', 't0_ns', 'dtype', 'ego_history', 'seed'])
def test_context_file_with_missing_metadata_is_refused_by_name(path: Path, field: str) -> None:
    rewrite(path, lambda header: header['__metadata__'].pop(field))
    refuse(path, Reason.CONTEXT_UNREADABLE)


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('version', '2'),
        ('n_rows', 'many'),
        ('dtype', 'float8'),
        ('generation', '1.5'),
        ('ego_history', '[{"stamp_ns": 1}]'),
        ('ego_history', '{}'),
        ('ego_history', 'nonsense'),
    ],
)
def test_context_file_with_wrong_metadata_is_refused(path: Path, field: str, value: str) -> None:
    rewrite(path, lambda header: header['__metadata__'].update({field: value}))
    refuse(path, Reason.CONTEXT_UNREADABLE)


def test_context_file_without_metadata_is_refused(path: Path) -> None:
    rewrite(path, lambda header: header.pop('__metadata__'))
    refuse(path, Reason.CONTEXT_UNREADABLE)


@pytest.mark.parametrize('name', ['layers.0.key', 'layers.1.value'])
def test_context_file_with_a_renamed_tensor_is_refused_by_name(path: Path, name: str) -> None:
    rewrite(path, lambda header: header.update({'other': header.pop(name)}))
    assert name in refuse(path, Reason.SHAPE_MISMATCH).text


def test_context_file_with_other_tensors_than_it_says_is_refused(path: Path) -> None:
    rewrite(path, lambda header: header['__metadata__'].update({'n_layers': '1'}))
    assert 'layers.1.key' in refuse(path, Reason.SHAPE_MISMATCH).text
    rewrite(path, lambda header: header['__metadata__'].update({'n_layers': '3'}))
    assert 'layers.2.key' in refuse(path, Reason.SHAPE_MISMATCH).text


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'shape': replace(SHAPE, n_layers=3)}, Reason.SHAPE_MISMATCH),
        ({'shape': replace(SHAPE, n_kv_heads=1)}, Reason.SHAPE_MISMATCH),
        ({'shape': replace(SHAPE, head_dim=16)}, Reason.SHAPE_MISMATCH),
        ({'shape': replace(SHAPE, n_rows=11)}, Reason.SHAPE_MISMATCH),
        ({'shape': replace(SHAPE, left_pad=0)}, Reason.SHAPE_MISMATCH),
        ({'shape': replace(SHAPE, rope_delta=0)}, Reason.SHAPE_MISMATCH),
        ({'shape': replace(SHAPE, dtype='float32')}, Reason.SHAPE_MISMATCH),
        ({'model_fingerprint': 'sha256:n'}, Reason.MODEL_MISMATCH),
        ({'prompt_fingerprint': 'q'}, Reason.PROMPT_MISMATCH),
        ({'digest': 'sha256:00'}, Reason.DIGEST_MISMATCH),
        ({'digest': 'md5:00'}, Reason.DIGEST_MISMATCH),
    ],
)
def test_context_file_that_is_not_what_was_announced_is_refused(
    path: Path, changes: dict, reason: Reason
) -> None:
    refuse(path, reason, replace(CONTEXT, **changes))


def test_context_file_digest_is_over_the_tensor_bytes(path: Path) -> None:
    data = b''.join(
        tensor.view(torch.uint8).numpy().tobytes() for pair in layers() for tensor in pair
    )
    digest = digest_of(path)
    content = path.read_bytes()
    assert digest == f'sha256:{hashlib.sha256(content[-len(data) :]).hexdigest()}'
    FileStore(path.parent).open(replace(CONTEXT, digest=digest)).close()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refuse(path, Reason.DIGEST_MISMATCH, replace(CONTEXT, digest=digest))


def test_context_file_cut_by_another_process_while_read_is_a_refusal(path: Path) -> None:
    # A memory map would end the process with SIGBUS here.
    source = FileStore(path.parent).open(CONTEXT)
    source.layer(0)
    subprocess.run(['truncate', '-s', '300', str(path)], check=True)
    with pytest.raises(Refusal) as caught:
        source.layer(1)
    assert caught.value.reason is Reason.CONTEXT_UNREADABLE
    source.close()


def test_context_file_replaced_while_read_stays_the_one_that_was_opened(path: Path) -> None:
    source = FileStore(path.parent).open(CONTEXT)
    write_context_file(path, CONTEXT, layers(seed=1))
    assert torch.equal(source.layer(0)[0], layers()[0][0])
    source.close()
    source.close()


def test_context_file_writer_refuses_what_does_not_fit_and_leaves_nothing(tmp_path: Path) -> None:
    for shape in (replace(SHAPE, n_rows=13), replace(SHAPE, n_layers=3)):
        with pytest.raises(Refusal):
            write_context_file(tmp_path / 'a', replace(CONTEXT, shape=shape), layers())
    assert not list(tmp_path.iterdir())


def test_context_file_writer_killed_half_way_leaves_no_file_of_that_name(tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
import alpamayo_node.model.context_file as module
from tests.model.test_context_file import CONTEXT, layers
def hang(*args, **kwargs):
    Path(args[1]).write_bytes(b'half')
    print('writing', flush=True)
    time.sleep(60)
module.save_file = hang
module.write_context_file(Path(sys.argv[1]), CONTEXT, layers())
"""
    path = tmp_path / 'a.safetensors'
    child = subprocess.Popen(
        [sys.executable, '-c', script, str(path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert child.stdout
    assert child.stdout.readline() == b'writing\n'
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert not path.exists()
    write_context_file(path, CONTEXT, layers())
    assert read_context_info(path) == CONTEXT


def test_context_file_reader_beside_a_writer_never_sees_half(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from alpamayo_node.model.context_file import write_context_file
from tests.model.test_context_file import CONTEXT, layers
for seed in range(300):
    write_context_file(Path(sys.argv[1]), CONTEXT, layers(seed=seed))
"""
    path = tmp_path / 'a.safetensors'
    write_context_file(path, CONTEXT, layers())
    child = subprocess.Popen([sys.executable, '-c', script, str(path)], cwd=ROOT)
    n_read, end_s = 0, time.monotonic() + 30.0
    while child.poll() is None and time.monotonic() < end_s:
        source = FileStore(tmp_path).open(CONTEXT)
        source.layer(0)
        source.close()
        n_read += 1
    assert child.wait() == 0
    assert n_read > 10


@pytest.mark.parametrize('text', ['[{"position_m": [1, 2]}]', '[3]', '{"a": 1}', '[', '[null]'])
def test_history_json_that_is_incomplete_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r'sample 0|expected a list|Expecting'):
        history_from_json(text)
