"""Every error that the cluster package raises on purpose.

ClusterError
 +-- WorkersError    the workers' folder or settings do not fit, or a worker did not start
"""

from __future__ import annotations


class ClusterError(Exception):
    """Base of everything the cluster package raises on purpose."""


class WorkersError(ClusterError):
    """The workers cannot run: with these settings, on this folder, or at all."""
