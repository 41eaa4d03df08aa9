"""Karat on a cluster of Ray: batch files and datasets by engines on many machines, and a server whose replicas may die.

    pip install '.[ray]'

Ray runs what it is sent: whoever reaches its ports runs programs there (docs/scaling.md). What goes between Karat's
actors is bytes of its own protocols.
"""

from karat.ray.application import app
from karat.ray.dataset import generate

__all__ = ["app", "generate"]
