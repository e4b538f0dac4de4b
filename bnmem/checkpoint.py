"""The weights in a checkpoint file, and nothing else of it: no code that a file may hold is ever run.

`torch.load(..., weights_only=True)` refuses whatever is more than tensors and plain containers; so does this file.
"""

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from bnmem.errors import InputError

# Where training scripts put the weights in a larger dictionary, and what wrappers put before every name.
WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "net", "weights")
PREFIXES = ("module.", "_orig_mod.", "model.")
_SAVE = "save only the weights: torch.save(model.state_dict(), PATH)"


def load_state(path: str | Path) -> dict[str, torch.Tensor]:
    """Name -> tensor on the CPU, floating types as float32, of a file that torch (or safetensors) saved.

    The weights may lie under one of WRAPPERS. A prefix of PREFIXES that all names share is taken off, also several in
    turn: those of DataParallel, torch.compile and Lightning. Safetensors files need the package of that name.
    Raises InputError for a missing or damaged file, a folder, a pickled object (which is not unpickled), a file
    without weights, and weights that are NaN or infinite.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the file with the weights in it")
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path")
    loaded = _safetensors(path) if path.suffix == ".safetensors" else _torch(path)
    state = _without_prefixes(_weights(loaded, path))
    state = {name: t.detach().float() if t.is_floating_point() else t.detach() for name, t in state.items()}
    bad = [name for name, t in state.items() if t.is_floating_point() and not bool(t.isfinite().all())]
    if bad:
        raise InputError(
            f"{path}: {some(bad)} {_have(bad)} NaN or infinity: the training diverged; take an earlier checkpoint"
        )
    return state


def some(names, most: int = 3) -> str:
    """ "a, b, c and 4 more" """
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _torch(path: Path):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's hints on pickles and TorchScript: the one line below says it
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"(?:GLOBAL|class) ([\w.]+\.[\w.]+)", str(error))
        what = f"({found[1]}), not only weights," if found else "or was not saved by torch,"
        raise InputError(f"{path} holds a pickled object {what} and opening it could run code; {_SAVE}") from None
    except PermissionError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check its permissions") from None
    except Exception as error:  # a file of any content: torch raises whatever its parser stumbles over
        if "TorchScript" in str(error):
            raise InputError(f"{path} is a TorchScript program, not weights; {_SAVE}") from None
        raise InputError(f"{path} is damaged or was not saved by torch ({type(error).__name__}); {_SAVE}") from None


def _safetensors(path: Path):
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise InputError(f"{path} needs the package safetensors: install it, or {_SAVE}") from None
    try:
        return load_file(path, device="cpu")
    except Exception as error:  # of the library's own class
        raise InputError(f"{path} is damaged or no safetensors file ({type(error).__name__}); save it again") from None


def _weights(loaded, path: Path) -> dict[str, torch.Tensor]:
    """The dictionary of tensors in what was loaded."""
    inside = [loaded]
    if isinstance(loaded, Mapping):
        inside += [loaded[name] for name in WRAPPERS if name in loaded]
    for found in inside:
        tensors = isinstance(found, Mapping) and [v for v in found.values() if isinstance(v, torch.Tensor)]
        if tensors and len(tensors) == len(found) and all(isinstance(name, str) for name in found):
            return dict(found)
    if isinstance(loaded, Mapping):
        what = f"a dictionary with {some(map(repr, loaded)) or 'nothing'}"
    else:
        what = f"a {type(loaded).__name__}"
    raise InputError(f"{path} holds {what} and no weights by name, also not under {', '.join(WRAPPERS)}; {_SAVE}")


def _without_prefixes(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if any(name.startswith("module.") for name in state):
        state.pop("n_averaged", None)  # AveragedModel's counter stands beside the wrapped net
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in state)), None):
        state = {name.removeprefix(prefix): t for name, t in state.items()}
    return state


def _have(names) -> str:
    return "has" if len(names) == 1 else "have"
