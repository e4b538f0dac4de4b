"""Where finished shadow models leave their scores, so that a killed run goes on from there.

One file a model: a checksum, then an npz. The folder is git-ignored and can be deleted at any time; what is in it was
computed with the code, library versions, processor and device that the folder's name stands for (those of the machine
that collects the scores, where a cluster computed them).
"""

import contextlib
import hashlib
import importlib.metadata
import io
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bnmem import records
from bnmem.errors import InputError


def folder() -> Path:
    """BNMEM_CACHE, else .cache/bnmem beside the results folder."""
    return Path(os.environ.get("BNMEM_CACHE") or records.folder().resolve().parent / ".cache" / "bnmem")


def place(name: str, code: str) -> Path:
    """The folder of one arm: `name` says what is computed, the rest by what: code, versions, processor, device."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    versions = [importlib.metadata.version(library) for library in records.LIBRARIES]
    made_with = hashlib.sha256(repr((code, versions, records.processor(), device)).encode())
    return folder() / f"{name}-{made_with.hexdigest()[:12]}"


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write one model's arrays, whole or not at all. Raises InputError where the folder cannot be written."""
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    body = packed.getvalue()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        records._write(path, hashlib.sha256(body).digest() + body)
    except OSError as error:
        raise InputError(
            f"cannot write scores to {path.parent} ({error.strerror}); set BNMEM_CACHE to a folder that can be written"
        ) from error


def load(path: Path) -> dict[str, np.ndarray] | None:
    """One model's arrays; None where there are none yet or the file is damaged: the model is then trained again."""
    try:
        raw = path.read_bytes()
        if hashlib.sha256(raw[32:]).digest() != raw[:32]:
            return None
        with np.load(io.BytesIO(raw[32:]), allow_pickle=False) as npz:
            return {name: npz[name] for name in npz.files}
    except (OSError, ValueError, zipfile.BadZipFile):
        return None


@contextlib.contextmanager
def scratch() -> Iterator[None]:
    """An empty cache inside, the old one after: nothing that was computed before is used."""
    before = os.environ.get("BNMEM_CACHE")
    with tempfile.TemporaryDirectory() as empty:
        os.environ["BNMEM_CACHE"] = empty
        try:
            yield
        finally:
            os.environ.pop("BNMEM_CACHE")
            if before is not None:
                os.environ["BNMEM_CACHE"] = before
