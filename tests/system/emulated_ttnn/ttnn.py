# SPDX-License-Identifier: Apache-2.0
"""With this folder on PYTHONPATH, a process finds the emulated chip in place of the library."""

import sys

from tests.emulation.library import make_library

sys.modules[__name__] = make_library()
