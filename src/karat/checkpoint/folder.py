"""A model as a Hugging Face folder: config.json beside `model.safetensors` or shards and their index."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from karat.checkpoint.composite import Composite, TextPart
from karat.checkpoint.files import member, open_regular
from karat.checkpoint.overrides import NO_OVERRIDES, Overrides
from karat.checkpoint.quantization import quantization_of, unread
from karat.checkpoint.safetensors import MAX_NAME_LEN, REMEDY, read_safetensors
from karat.checkpoint.scaled import joined, part_of, remarks_on_scaled
from karat.checkpoint.strict_json import JsonError, JsonStream, read_json
from karat.checkpoint.unused import Unused, remarks_on_unused, set_aside, unused_in_folder
from karat.checkpoint.weights import BYTES, NARROW, Weight, remarks_on
from karat.checkpoint.wording import listed, shown
from karat.errors import CheckpointError, ConfigError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20
_MAX_STRAYS = 1000  # tensors in the wrong place, after which nothing more is read
_FILE_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]{0,200}\.safetensors", re.ASCII)
_MAX_DEPTH = 4  # folders in folders that are looked through for a model: models--org--name/snapshots/COMMIT in a cache
_MAX_FOLDERS = 64
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True, eq=False)
class FolderCheckpoint:
    """A Checkpoint: the folder as given, its two configs as written, and its memory-mapped weights.

    Of a folder with several models in it (karat.checkpoint.composite), `config` and `weights` are the text model's.
    `unused` has the tensors that are declared unused. `config` is as the user's `overrides` leave it.
    `generation_fault` says why there is no `generation_config`, if a file of its name cannot be read: only what needs
    it fails. `remarks` are those on how weights are stored.
    """

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any] | None
    weights: Mapping[str, Weight]
    overrides: Overrides = NO_OVERRIDES
    unused: Unused = field(default_factory=dict)
    generation_fault: ConfigError | None = None
    remarks: tuple[str, ...] = ()

    @property
    def generation_source(self) -> str:
        """The name of the file that `generation_config` comes from."""
        return "generation_config.json"

    @property
    def warnings(self) -> tuple[str, ...]:
        """To be shown when the model is loaded."""
        remarks = [*self.remarks, *remarks_on_unused(self.unused), *remarks_on(self.weights.values())]
        return (*remarks, *self.overrides.remarks(self.config))


def open_folder(
    path: Path,
    overrides: Overrides = NO_OVERRIDES,
    composites: Mapping[str, Composite] = MappingProxyType({}),
) -> FolderCheckpoint:
    """Opens and checks the model in the folder `path`. Reads the configs and headers, no weight.

    `composites` are the kinds of folders, by model_type, of which the text part is opened. Raises ConfigError for
    config.json, UsageError for overrides that do not fit the model, CheckpointError for everything else.
    """
    try:
        if not path.is_dir():
            raise CheckpointError(f"{path}: is no folder; expected one with config.json and {SINGLE}")
        files = _weight_files(path)
        if (config_file := member(path, "config.json")) is None:
            raise ConfigError(
                f"{path}: has no config.json, which says what model the weights are; download it beside them"
            )
        generation, fault = _read_generation(path)
        config = read_json(config_file)
        kind = quantization_of(config)
        also = () if kind is None else (BYTES, NARROW)
        read = partial(read_safetensors, also=also, remedy=unread(config) or REMEDY)
        weights = _read_shards(path, files, read) if files else read(path / SINGLE)
        weights, others = set_aside(weights, part_of) if kind is not None else (weights, {})
        weights = joined(weights, kind) if kind is not None else weights
        remarks = remarks_on_scaled(weights.values(), kind) if kind is not None else []
        model_type = config.get("model_type")
        composite = composites.get(model_type) if isinstance(model_type, str) else None
        text = TextPart(config, weights, {}) if composite is None else composite.text_part(config, weights)
        config = overrides.of_config(text.config)
        weights, predicting = set_aside(text.weights, unused_in_folder(config))
        unused = {**others, **text.unused, **predicting}
        checkpoint = FolderCheckpoint(path, config, generation, weights, overrides, unused, fault, tuple(remarks))
        _check_num_layers(checkpoint)
        return checkpoint
    except OSError as fault:
        raise CheckpointError(f"{path}: cannot be read ({fault.strerror}); may you read it?") from fault


def _read_generation(path: Path) -> tuple[dict[str, Any] | None, ConfigError | None]:
    """generation_config.json, or why it cannot be read; neither if it is not there."""
    file = member(path, "generation_config.json")
    try:
        return None if file is None else read_json(file), None
    except ConfigError as fault:
        return None, fault


def _check_num_layers(checkpoint: FolderCheckpoint) -> None:
    """Raises ConfigError for more layers than tensors, before memory is taken for each layer."""
    stated, num_tensors = checkpoint.config.get("num_hidden_layers"), len(checkpoint.weights)
    if isinstance(stated, int) and stated > num_tensors:
        raise ConfigError(
            f"{checkpoint.path}: config.json has num_hidden_layers={stated}, and there are {num_tensors} tensors; "
            "expected some for each layer; download both again"
        )


def read_index(path: Path) -> dict[str, str]:
    """The index's weight_map (tensor -> file name). File names have no folder. Raises CheckpointError."""
    files: dict[str, str] = {}
    names: dict[str, str] = {}  # one string for each file, not one for each tensor
    try:
        file, size = open_regular(path)
        with file:
            if size > MAX_INDEX_BYTES:
                raise JsonError(f"{size} bytes; expected at most {MAX_INDEX_BYTES}")
            stream = JsonStream(file, size)
            for key in stream.members():
                if key != "weight_map":
                    stream.value()
                    continue
                for tensor in stream.members():
                    name = stream.string()
                    files[tensor] = names.setdefault(name, name)
                    if len(tensor) > MAX_NAME_LEN:
                        raise JsonError(f"the name {shown(tensor)} has more than {MAX_NAME_LEN} characters")
            stream.finish()
    except JsonError as fault:
        raise CheckpointError(f"{path}: is no index: {fault}; download it again") from fault
    if not files:
        raise CheckpointError(f"{path}: names no tensor in its weight_map; download it again")
    for name in names:
        if not _FILE_NAME.fullmatch(name):
            raise CheckpointError(
                f"{path}: puts tensors into {shown(name)}; expected a plain name like 'model-00001-of-00002"
                ".safetensors', of a file in the same folder"
            )
    return files


def refusal(place: str, names: Collection[str]) -> str | None:
    """Why `place` with the files `names` is no model that Karat reads, and what to do; None if it may be one."""
    if adapters := [name for name in names if name in _ADAPTERS]:
        return (
            f"{place}: has {adapters[0]}, a LoRA adapter; Karat runs whole models: merge the adapter into its base "
            "model and give the merged folder, or remove the adapter's files to run the base model alone"
        )
    if SINGLE in names or INDEX in names:
        return None
    if shards := [name for name in names if name.endswith(".safetensors")]:
        return (
            f"{place}: has {shown(shards[0])} but neither {SINGLE} nor {INDEX}, which maps tensors to files: "
            "download the model again"
        )
    if pickles := [name for name in names if name.endswith(_PICKLES)]:
        return (
            f"{place}: has its weights only as {shown(pickles[0])}, a pickle, which can run any code when it "
            "is loaded; Karat reads safetensors only: look for a safetensors revision of the model, or convert "
            "it in a sandbox with transformers (from_pretrained, then save_pretrained)"
        )
    if ggufs := [name for name in names if name.endswith(".gguf")]:
        return (
            f"{place}: has its weights as GGUF ({listed([shown(name) for name in sorted(ggufs)])}): name the file, "
            "like FOLDER/NAME.gguf, or on the hub its type, like org/name:Q4_K_M"
        )
    found = listed([shown(name) for name in names]) or "nothing"
    return f"{place}: expected {SINGLE} or {INDEX}, found {found}; is this the model?"


def _models_inside(folder: Path) -> list[Path]:
    """Models in the folders of a folder, such as the root of LM Studio, of Ollama or of the hub's cache."""
    found: list[Path] = []
    level = [folder]
    for _ in range(_MAX_DEPTH):
        level = [path for above in level for path in _listed(above) if path.is_dir()][:_MAX_FOLDERS]
        for path in level:
            names = _listed(path)
            if path / "config.json" in names:
                found.append(path)
            found += [name for name in names if name.suffix == ".gguf"]
            if path.name == "blobs" and path.parent.name == "models":  # Ollama's files have no ending
                found += [name for name in names if name.name.startswith("sha256-") and _begins_as_gguf(name)]
    return found


def _begins_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:_MAX_FOLDERS]
    except OSError:
        return []


def _weight_files(folder: Path) -> Mapping[str, str]:
    """The index's map (tensor -> file name); empty if there is only `model.safetensors`."""
    if reason := refusal(str(folder), sorted(file.name for file in folder.iterdir())):
        inside = _models_inside(folder)
        raise CheckpointError(reason + (f" There is {listed([str(path) for path in inside], 3)}" if inside else ""))
    single, index = member(folder, SINGLE), member(folder, INDEX)
    if index is None:
        return {}
    files = read_index(index)
    if single and SINGLE not in files.values():
        raise CheckpointError(f"{folder}: has both {SINGLE} and an index of other files; remove one of the two")
    return files


def _read_shards(
    folder: Path, files: Mapping[str, str], read: Callable[[Path], dict[str, Weight]]
) -> dict[str, Weight]:
    """The tensors of all shards, by what reads a file. Each must be in the file that the index names, in no other."""
    weights: dict[str, Weight] = {}
    strays: list[tuple[str, str]] = []
    for file, num_listed in Counter(files.values()).items():
        if (path := member(folder, file)) is None:
            raise CheckpointError(
                f"{folder}: has no {file}, into which the index puts {num_listed} tensors; download it too"
            )
        for name, weight in read(path).items():
            if files.get(name) == file:
                weights[name] = weight
            else:
                strays.append((name, file))
        if len(strays) > _MAX_STRAYS:
            break
    all_read = len(strays) <= _MAX_STRAYS
    faults = [f"{shown(name)} is in {file}{_otherwise(name, files, weights)}" for name, file in strays]
    if all_read:
        found = weights.keys() | {name for name, _ in strays}
        faults += [f"{shown(name)} is not in {file}" for name, file in files.items() if name not in found]
    if faults:
        raise CheckpointError(
            f"{folder / INDEX}: {'' if all_read else 'at least '}{len(faults)} tensors are not where it says: "
            f"{listed(faults)}; the files are of different versions: download all of them again"
        )
    return weights


def _otherwise(name: str, files: Mapping[str, str], weights: Mapping[str, Weight]) -> str:
    if name not in files:
        return ", not listed"
    return f" and in {files[name]}" if name in weights else f", listed for {files[name]}"
