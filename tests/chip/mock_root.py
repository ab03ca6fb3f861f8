# SPDX-License-Identifier: Apache-2.0
"""
A place where the real ttnn library opens a chip that is not there.

ttnn can take a description of a cluster in place of a driver. Everything on the host is then real:
the checks of arguments, the allocation of DRAM and L1, the making of programs and their cache. No
kernel ever runs, so what is read back is zero, and recording a trace is not possible. The library
still insists on a kernel compiler, which its wheel does not carry, and on loadable results. Both
are stand-ins in a folder of their own, where no run on silicon can find them.
"""

from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
import struct

_RET = 0x00008067
_TEXT_AT, _DATA_AT = 0x10000, 0xFFB00000
_R_RISCV_RELAX = 51


@dataclass(frozen=True)
class Board:
    """What a cluster description says about one board."""

    arch: str
    name: str
    board_id: int
    harvested_tensix: int
    harvested_eth: int
    harvested_pcie: int


BOARDS = {
    'wormhole': Board('wormhole_b0', 'n150', 72059269368820857, 64, 0, 0),
    'blackhole': Board('blackhole', 'p150', 4402341478400, 192, 288, 2),
}


def lay_out(folder: Path, chip: str) -> dict[str, str]:
    """
    Make a runtime root for one process.

    :param folder: empty; kernels are cached below it too
    :param chip: a key of `BOARDS`
    :return: environment in which ttnn opens the chip
    """
    # Not by its module: in this process an emulation may have taken the name.
    package = Path(str(distribution('ttnn').locate_file('ttnn')))
    _link_all(package, folder, but='runtime')
    _link_all(package / 'runtime', folder / 'runtime', but='sfpi')
    stub = folder / 'kernel.elf'
    stub.write_bytes(_loadable_kernel())
    compiler = folder / 'runtime' / 'sfpi' / 'compiler' / 'bin' / 'riscv-tt-elf-g++'
    compiler.parent.mkdir(parents=True)
    compiler.write_text(_compiler_script(package / 'tt_metal' / 'pre-compiled', stub))
    compiler.chmod(0o755)
    cluster = folder / 'cluster.yaml'
    cluster.write_text(_cluster(BOARDS[chip]))
    return {
        'TT_METAL_MOCK_CLUSTER_DESC_PATH': str(cluster),
        'TT_METAL_RUNTIME_ROOT': str(folder),
        'TT_METAL_HOME': str(folder),
        'TT_METAL_CACHE': str(folder / 'kernels'),
        'TT_METAL_LOGGER_LEVEL': 'error',
    }


def _link_all(source: Path, target: Path, but: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        if entry.name != but:
            (target / entry.name).symlink_to(entry)


def _cluster(board: Board) -> str:
    return '\n'.join(
        [
            f'arch: {{0: {board.arch}}}',
            'chips: {0: [0, 0, 0, 0]}',
            'ethernet_connections: []',
            'ethernet_connections_to_remote_devices: []',
            'chips_with_mmio: [{0: 0}]',
            'io_device_type: PCIe',
            'harvesting:',
            '  0:',
            '    noc_translation: true',
            f'    harvest_mask: {board.harvested_tensix}',
            '    dram_harvesting_mask: 0',
            f'    eth_harvesting_mask: {board.harvested_eth}',
            f'    pcie_harvesting_mask: {board.harvested_pcie}',
            '    l2cpu_harvesting_mask: 0',
            'boards:',
            f'  - [{{board_id: {board.board_id}}}, {{board_type: {board.name}}}, {{chips: [0]}}]',
            '',
        ]
    )


def _compiler_script(precompiled: Path, stub: Path) -> str:
    """Answer for the version; for anything else, write the files that were asked for."""
    return f"""#!/bin/sh
if [ "$1" = --version ]; then echo 'riscv-tt-elf-g++ (stand-in) 15.1.0'; exit 0; fi
while [ $# -gt 0 ]; do
  case "$1" in
    -o) result=$2; shift ;;
    -MMD) wants_rule=1 ;;
  esac
  shift
done
case "$result" in
  */firmware/*.elf)
    name=$(basename "$result"); name=${{name%%.*}}
    for made in {precompiled}/*/"$name"/"$name".elf; do break; done
    [ -e "$made" ] || made={stub}
    cp "$made" "$result" ;;
  *.elf) cp {stub} "$result" ;;
  *) : > "$result" ;;
esac
[ -z "$wants_rule" ] || echo "$result:" > "${{result%.*}}.d"
"""


def _loadable_kernel() -> bytes:
    """
    Assemble the smallest 32-bit RISC-V program that ttnn's loader takes.

    One text and one data segment at adjoining load addresses, one relocation of the text.
    """
    text, data = struct.pack('<I', _RET) * 4, bytes(4)
    symbols = bytes(16) + struct.pack('<IIIBBH', 1, _TEXT_AT, 4, 0x12, 0, 1)
    relocation = struct.pack('<IIi', _TEXT_AT, 1 << 8 | _R_RISCV_RELAX, 0)
    names = b'\0.text\0.rela.text\0.data\0.symtab\0.strtab\0.shstrtab\0'
    # name, type, flags, address, content, link, info, entry size
    sections = [
        (b'.text', 1, 6, _TEXT_AT, text, 0, 0, 0),
        (b'.rela.text', 4, 0x40, 0, relocation, 4, 1, 12),
        (b'.data', 1, 3, _DATA_AT, data, 0, 0, 0),
        (b'.symtab', 2, 0, 0, symbols, 5, 1, 16),
        (b'.strtab', 3, 0, 0, b'\0f\0', 0, 0, 0),
        (b'.shstrtab', 3, 0, 0, names, 0, 0, 0),
    ]
    header_size, segment_size, section_size = 52, 32, 40
    image = bytearray(-(-(header_size + 2 * segment_size) // 16) * 16)
    table = bytes(section_size)
    offsets = {}
    for name, kind, flags, address, content, link, info, entry in sections:
        image += bytes(-len(image) % 16)
        offsets[name] = len(image)
        name_at = names.index(b'\0' + name + b'\0') + 1
        fields = (kind, flags, address, len(image), len(content), link, info, 4, entry)
        table += struct.pack('<10I', name_at, *fields)
        image += content
    image += bytes(-len(image) % 16)
    header = b'\x7fELF\x01\x01\x01' + bytes(9)
    header += struct.pack(
        '<HHIIIIIHHHHHH',
        *(2, 243, 1, _TEXT_AT, header_size, len(image), 0, header_size),
        *(segment_size, 2, section_size, len(sections) + 1, len(sections)),
    )
    for name, load_at, address, size, flags in (
        (b'.text', _TEXT_AT, _TEXT_AT, len(text), 5),
        (b'.data', _TEXT_AT + len(text), _DATA_AT, len(data), 6),
    ):
        header += struct.pack('<8I', 1, offsets[name], address, load_at, size, size, flags, 4)
    image[: len(header)] = header
    return bytes(image) + table
