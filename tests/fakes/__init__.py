# SPDX-License-Identifier: Apache-2.0
"""Scripted stand-ins for the slow or fragile parts, behind the real interfaces."""
