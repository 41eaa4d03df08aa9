"""Karat on a cluster of Ray: a batch file by engines on many machines, and a dataset with a column of answers.

    pip install '.[ray]'

Ray runs what it is sent: whoever reaches its ports runs programs there (docs/scaling.md). What goes between Karat's
actors is bytes of its own protocols.
"""

from karat.ray.dataset import generate

__all__ = ["generate"]
