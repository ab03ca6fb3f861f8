# SPDX-License-Identifier: Apache-2.0
"""With this folder on PYTHONPATH, a process cannot import the library."""

raise ImportError('there is no ttnn here')
