# SPDX-License-Identifier: Apache-2.0
"""The sub-commands of `alpamayo`, each a module with `add_arguments(parser)` and `run(args)`."""
