# SPDX-License-Identifier: Apache-2.0
"""
How torch's threads wait for each other; to be decided before torch is imported.

GNU OpenMP lets a thread that waits spin for milliseconds. On a machine whose cores are busy with
something else, the thread it waits for does not get a core meanwhile: a plan of 20 ms was seen to
take 4 s. A short spin costs a few microseconds at each of the network's many small steps, and
keeps a loaded machine's plans within their time.
"""

import os

SPIN_COUNT = 1000
"""Rounds before a waiting thread sleeps: what OpenMP takes once threads outnumber cores."""


def limit_spinning() -> None:
    """Let waiting threads sleep soon, unless the environment says otherwise."""
    os.environ.setdefault('GOMP_SPINCOUNT', str(SPIN_COUNT))
