# SPDX-License-Identifier: Apache-2.0
"""Print the fingerprint of a checkpoint: what a text model must put into its announcements."""

from argparse import ArgumentParser
from argparse import Namespace
from pathlib import Path

from alpamayo_node.model.checkpoint import Checkpoint


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument('directory', type=Path, metavar='DIR')


def run(args: Namespace) -> int:
    """Read all expert tensors once, and print."""
    checkpoint = Checkpoint.open(args.directory)
    print(checkpoint.fingerprint(lambda: False, lambda text: None))
    return 0
