"""Checkpoints: finding a model, checking its untrusted files, and giving every layer its weight."""

from karat.checkpoint.assign import assign
from karat.checkpoint.folder import FolderCheckpoint, open_folder
from karat.checkpoint.gguf import GgufCheckpoint
from karat.checkpoint.locate import resolve
from karat.checkpoint.requantizing import Requantized, requantize, requantized_type
from karat.checkpoint.safetensors import SafetensorsHeader, TensorEntry, read_header, read_safetensors
from karat.checkpoint.strict_json import read_json
from karat.checkpoint.weights import Checkpoint, Weight, WeightSpec

ModelCheckpoint = FolderCheckpoint | GgufCheckpoint

__all__ = [
    "Checkpoint",
    "FolderCheckpoint",
    "GgufCheckpoint",
    "ModelCheckpoint",
    "Requantized",
    "SafetensorsHeader",
    "TensorEntry",
    "Weight",
    "WeightSpec",
    "assign",
    "open_folder",
    "read_header",
    "read_json",
    "read_safetensors",
    "requantize",
    "requantized_type",
    "resolve",
]
