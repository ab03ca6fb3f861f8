# SPDX-License-Identifier: Apache-2.0
"""
Check this machine: one line for each thing that planning needs, with the fix where it is missing.

A check is `ok`, a `note` (planning works without, or only a chip needs it) or `FAIL`. What only a
chip needs fails with `--backend ttnn` alone. Nothing is loaded into this process that could crash
or hang it: rclpy is tried in another one, and ttnn is looked at from outside.

What ttnn looks for, and where, was read off the libraries of its wheel, version 0.81.1: the kernel
compiler below its runtime root and in /opt/tenstorrent/sfpi, one huge page of 1 GB for each chip
unless the IOMMU translates for it, compiled kernels below TT_METAL_CACHE.
"""

from argparse import ArgumentParser
from argparse import Namespace
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError
from importlib.metadata import distribution
from importlib.metadata import version
import importlib.util
import json
import os
from pathlib import Path
import subprocess
import sys

BACKENDS = ('torch', 'ttnn')
TORCH_VERSION = '2.14.1'
TTNN_VERSION = '0.81.1'
PYTHON = (3, 12)
ROS_DISTRIBUTION = 'jazzy'
FULL_SIZE_BYTES = 8 * 2**30
TENSTORRENT_VENDOR = '0x1e52'
COMPILER = Path('compiler/bin/riscv-tt-elf-g++')
TIMEOUT_S = 60

type CanAccess = Callable[[Path, int], bool]
type FindVersion = Callable[[str], str | None]


class Level(StrEnum):
    """How a check came out."""

    OK = 'ok'
    NOTE = 'note'
    FAIL = 'FAIL'


@dataclass(frozen=True)
class Finding:
    """What one check found, and what to do about it."""

    name: str
    level: Level
    text: str
    fix: str = ''

    def __str__(self) -> str:
        """Give the line that a person reads."""
        fix = f'; fix: {self.fix}' if self.fix else ''
        return f'{self.level:<4}  {self.name}: {self.text}{fix}'


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        '--backend',
        choices=BACKENDS,
        default=BACKENDS[0],
        help='what is to run the model; with ttnn, the chip must be there too',
    )
    parser.add_argument('--json', action='store_true', help='print JSON instead of lines')


def run(args: Namespace) -> int:
    """Print what was found; 0 if nothing failed."""
    findings = []
    for finding in _all_checks(needs_chip=args.backend == 'ttnn'):
        findings.append(finding)
        if not args.json:
            print(finding, flush=True)
    is_ok = all(finding.level != Level.FAIL for finding in findings)
    if args.json:
        print(json.dumps({'ok': is_ok, 'checks': [asdict(finding) for finding in findings]}))
    return 0 if is_ok else 1


def _all_checks(*, needs_chip: bool) -> Iterator[Finding]:
    root = Path('/')
    yield check_python(sys.version_info[:2])
    yield check_import('rclpy', os.environ)
    yield check_import('alpamayo_msgs.msg', os.environ)
    yield check_launch()
    yield check_torch(installed_version)
    yield check_numpy(installed_version, needs_chip=needs_chip)
    yield check_ttnn(installed_version, needs_chip=needs_chip)
    yield check_device(root, os.access, needs_chip=needs_chip)
    yield check_compiler(root, runtime_root(os.environ), needs_chip=needs_chip)
    yield check_huge_pages(root, needs_chip=needs_chip)
    yield check_kernel_cache(os.environ, os.access, needs_chip=needs_chip)
    yield check_processor(len(os.sched_getaffinity(0)))
    yield check_memory(root)


def installed_version(name: str) -> str | None:
    """
    Look a package up without importing it.

    :param name: name of the distribution
    :return: its version, without the part that names a build; None if it is not installed
    """
    try:
        return version(name).partition('+')[0]
    except PackageNotFoundError:
        return None


def runtime_root(environment: Mapping[str, str]) -> Path | None:
    """Find the folder in which ttnn keeps its runtime files; None without ttnn."""
    if given := environment.get('TT_METAL_RUNTIME_ROOT'):
        return Path(given)
    try:
        return Path(str(distribution('ttnn').locate_file('ttnn')))
    except PackageNotFoundError:
        return None


def check_python(running: tuple[int, int]) -> Finding:
    """Compare the interpreter with the one that Jazzy and ttnn are built for."""
    text = f'{running[0]}.{running[1]}'
    if running == PYTHON:
        return Finding('python', Level.OK, text)
    fix = 'make setup, then . ./env.sh'
    return Finding('python', Level.FAIL, f'ROS 2 Jazzy needs Python 3.12, this is {text}', fix)


def check_import(module: str, environment: Mapping[str, str]) -> Finding:
    """
    Import a ROS module in another process.

    :param environment: of this process; names the distribution
    """
    name = module.partition('.')[0]
    process = subprocess.run(
        [sys.executable, '-c', f'import {module}'],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    fix = 'make setup, then . ./env.sh'
    if process.returncode != 0:
        last = (process.stderr.strip().splitlines() or ['no word'])[-1]
        return Finding(name, Level.FAIL, f'cannot be imported ({last})', fix)
    found = environment.get('ROS_DISTRO', 'unknown')
    if found != ROS_DISTRIBUTION:
        text = f'ROS_DISTRO is {found}, not {ROS_DISTRIBUTION}'
        return Finding(name, Level.FAIL, text, fix)
    return Finding(name, Level.OK, f'ROS 2 {found}')


def check_launch() -> Finding:
    """Tell whether `ros2 launch` can be used."""
    if importlib.util.find_spec('launch_ros'):
        return Finding('launch', Level.OK, 'launch_ros is installed')
    text = 'launch_ros is not installed: no `ros2 launch`; `alpamayo demo` does without'
    return Finding(
        'launch', Level.NOTE, text, 'on Ubuntu 24.04: apt-get install ros-jazzy-ros-base'
    )


def check_torch(find_version: FindVersion) -> Finding:
    """Compare torch with the version that was tested."""
    found = find_version('torch')
    if found is None:
        return Finding('torch', Level.FAIL, 'not installed', 'make setup, then . ./env.sh')
    if found != TORCH_VERSION:
        return Finding('torch', Level.NOTE, f'{found}; tested with {TORCH_VERSION}', 'make setup')
    return Finding('torch', Level.OK, found)


def check_numpy(find_version: FindVersion, *, needs_chip: bool) -> Finding:
    """Ask for numpy, below version 2 for ttnn."""
    found = find_version('numpy')
    if found is None:
        return Finding('numpy', Level.FAIL, 'not installed', 'make setup, then . ./env.sh')
    if int(found.partition('.')[0]) >= 2:
        return _missing(
            'numpy', f'{found}, but ttnn needs numpy < 2', 'make setup', needs_chip=needs_chip
        )
    return Finding('numpy', Level.OK, found)


def check_ttnn(find_version: FindVersion, *, needs_chip: bool) -> Finding:
    """Compare ttnn with the version that the chip's backend is written for."""
    found = find_version('ttnn')
    if found == TTNN_VERSION:
        return Finding('ttnn', Level.OK, found)
    text = f'{found} is installed' if found else 'not installed'
    fix = f'pip install ttnn=={TTNN_VERSION} "numpy<2"'
    return _missing('ttnn', f'{text}, {TTNN_VERSION} is needed', fix, needs_chip=needs_chip)


def check_device(root: Path, can_access: CanAccess, *, needs_chip: bool) -> Finding:
    """
    Look for a chip's device node that this user may open.

    :param root: where the file system begins
    :param can_access: as `os.access`
    """
    folder = root / 'dev' / 'tenstorrent'
    nodes = sorted(folder.glob('[0-9]*'))
    if not nodes:
        on_bus = len(_chips_on_bus(root))
        text = f'{on_bus} Tenstorrent card(s) on the bus, but no driver' if on_bus else 'no chip'
        fix = 'load the tt-kmd kernel module (in a container: pass /dev/tenstorrent on)'
        return _missing('device', f'{text}: {folder} has no node', fix, needs_chip=needs_chip)
    if closed := [node for node in nodes if not can_access(node, os.R_OK | os.W_OK)]:
        fix = f'give this user read and write access, e.g. chmod a+rw {closed[0]}'
        return _missing(
            'device', f'{closed[0]} may not be opened by this user', fix, needs_chip=needs_chip
        )
    return Finding('device', Level.OK, ', '.join(str(node) for node in nodes))


def check_compiler(root: Path, runtime: Path | None, *, needs_chip: bool) -> Finding:
    """
    Look for the compiler of kernels, which ttnn's wheel does not carry.

    :param root: where the file system begins
    :param runtime: ttnn's runtime root, if there is one
    """
    folders = [root / 'opt' / 'tenstorrent' / 'sfpi']
    if runtime is not None:
        folders.insert(0, runtime / 'runtime' / 'sfpi')
    for folder in folders:
        if (folder / COMPILER).is_file():
            return Finding('compiler', Level.OK, str(folder))
    places = ' or '.join(str(folder) for folder in folders)
    fix = (
        f"install Tenstorrent's sfpi package for ttnn {TTNN_VERSION} (puts it into {folders[-1]})"
    )
    return _missing('compiler', f'no {COMPILER} in {places}', fix, needs_chip=needs_chip)


def check_huge_pages(root: Path, *, needs_chip: bool) -> Finding:
    """
    Look for what lets a chip reach this machine's memory: an IOMMU or huge pages.

    :param root: where the file system begins
    """
    chips = _chips_on_bus(root)
    if chips and all(_read(chip / 'iommu_group' / 'type').startswith('DMA') for chip in chips):
        return Finding('huge pages', Level.OK, 'the IOMMU translates, none are needed')
    count = root / 'sys' / 'kernel' / 'mm' / 'hugepages' / 'hugepages-1048576kB' / 'nr_hugepages'
    n_pages, n_needed = int(_read(count) or 0), max(1, len(chips))
    mount = root / 'dev' / 'hugepages-1G'
    fix = "install Tenstorrent's huge page service (tt-system-tools), or switch the IOMMU on"
    if n_pages < n_needed:
        text = f'{n_pages} of 1 GB, {n_needed} needed, and no IOMMU translates'
        return _missing('huge pages', text, fix, needs_chip=needs_chip)
    if not mount.is_dir():
        return _missing('huge pages', f'{mount} is not mounted', fix, needs_chip=needs_chip)
    return Finding('huge pages', Level.OK, f'{n_pages} of 1 GB')


def check_kernel_cache(
    environment: Mapping[str, str], can_access: CanAccess, *, needs_chip: bool
) -> Finding:
    """
    Ask whether compiled kernels can be kept.

    :param environment: may set TT_METAL_CACHE; else it is below the home folder
    :param can_access: as `os.access`
    """
    given = environment.get('TT_METAL_CACHE')
    folder = Path(given or environment.get('HOME', '/') + '/.cache') / 'tt-metal-cache'
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if existing.is_dir() and can_access(existing, os.W_OK | os.X_OK):
        return Finding('kernel cache', Level.OK, str(folder))
    fix = 'set TT_METAL_CACHE to a folder that this user may write'
    text = f'{existing} is not a folder that this user may write'
    return _missing('kernel cache', text, fix, needs_chip=needs_chip)


def check_processor(n_cores: int) -> Finding:
    """Tell how many cores this process may use."""
    level = Level.OK if n_cores > 1 else Level.NOTE
    return Finding('processor', level, f'{n_cores} core{"s" if n_cores > 1 else ""}')


def check_memory(root: Path) -> Finding:
    """
    Compare the memory with what the full-size model needs on the CPU.

    :param root: where the file system begins
    """
    lines = _read(root / 'proc' / 'meminfo').splitlines()
    fields = {name: rest for name, _, rest in (line.partition(':') for line in lines)}
    if 'MemAvailable' not in fields:
        return Finding('memory', Level.NOTE, 'unknown: /proc/meminfo does not tell')
    available, total = (
        int(fields[name].split()[0]) * 1024 for name in ('MemAvailable', 'MemTotal')
    )
    text = f'{available / 2**30:.1f} of {total / 2**30:.1f} GiB available'
    if available < FULL_SIZE_BYTES:
        needed = f'the full-size model needs about {FULL_SIZE_BYTES / 2**30:.0f} on the CPU'
        return Finding('memory', Level.NOTE, f'{text}; {needed}')
    return Finding('memory', Level.OK, text)


def _missing(name: str, text: str, fix: str, *, needs_chip: bool) -> Finding:
    return Finding(name, Level.FAIL if needs_chip else Level.NOTE, text, fix)


def _chips_on_bus(root: Path) -> list[Path]:
    devices = sorted((root / 'sys' / 'bus' / 'pci' / 'devices').glob('*'))
    return [device for device in devices if _read(device / 'vendor') == TENSTORRENT_VENDOR]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ''
