"""Records: what was computed, from what, when and with which code; one JSON file (and perhaps one npz) a computation.

`results/EXPERIMENT/KEY.json`, KEY = hash of the settings that differ from their defaults and of the data fingerprint.
A record is written whole or not at all, and refused when its checksum does not fit.
"""

import ast
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import subprocess
import tokenize
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from bnmem.errors import InputError
from bnmem.settings import Settings

PACKAGE = Path(__file__).resolve().parent
LIBRARIES = ("torch", "torchvision", "numpy", "scipy", "scikit-learn")
_FIELDS = {"experiment", "kind", "settings", "data", "code", "numbers", "arrays", "provenance"}


@dataclass(frozen=True)
class Record:
    """numbers: JSON values; arrays: name -> NumPy array; fresh: computed just now rather than read."""

    experiment: str
    kind: str
    key: str
    settings: dict
    data: str
    code: str
    numbers: dict
    arrays: dict
    provenance: dict
    fresh: bool = False

    @property
    def line(self) -> str:
        """What a notebook prints of it."""
        if self.fresh:
            return f"{self.key}: computed"
        return f"record {self.key}, {self.provenance['start'][:10]}, torch {self.provenance['libraries']['torch']}"


def folder() -> Path:
    """Where records live: BNMEM_RESULTS, else ./results, else the copy that came with the code."""
    if os.environ.get("BNMEM_RESULTS"):
        return Path(os.environ["BNMEM_RESULTS"])
    candidates = (Path("results"), PACKAGE.parent / "results", PACKAGE / "results")
    return next((c for c in candidates if c.is_dir()), candidates[0])


def key(kind: str, settings: Settings, data: str) -> str:
    """16 hex digits that name the computation of `settings` on the data with fingerprint `data`."""
    return _key(kind, settings.changed(), data)


def _key(kind: str, changed: dict, data: str) -> str:
    text = json.dumps({"kind": kind, "settings": changed, "data": data}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_hash(modules: Iterable[str]) -> str:
    """Hash of the named bnmem files without comments, docstrings and blank lines: what could change a number."""
    digest = hashlib.sha256()
    for name in sorted(modules):
        digest.update(f"# {name}\n{bare_source((PACKAGE / f'{name}.py').read_text(encoding='utf-8'))}".encode())
    return digest.hexdigest()[:16]


def bare_source(source: str) -> str:
    """Python source without comments, docstrings, blank lines and trailing blanks."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            lines[first.lineno - 1 : first.end_lineno] = [""] * (first.end_lineno - first.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


def provenance(modules: Iterable[str], start: datetime, threads: int) -> dict:
    """Commit and whether the computing files differed from it, versions, processor, threads, start (UTC), seconds."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": _git("status", "--porcelain", "--", *(f"bnmem/{m}.py" for m in modules)) not in ("", "unknown"),
        "python": platform.python_version(),
        "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "processor": processor(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": threads,
        "start": start.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round((datetime.now(UTC) - start).total_seconds(), 2),
    }


def processor() -> str:
    """Model, family and stepping as Linux names them; what the platform module says elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    fields = ("model name", "cpu family", "model", "stepping")
    found = [re.search(rf"^{field}\s*: (.*)$", text, re.M) for field in fields]
    return " / ".join(match[1].strip() for match in found if match) or platform.machine()


def require_writable(experiment: str) -> None:
    """Raises InputError where records of an experiment cannot be written: better before a computation than after it."""
    where = folder() / experiment
    try:
        where.mkdir(parents=True, exist_ok=True)
        _write(where / "writable", b"")
        (where / "writable").unlink()
    except OSError as error:
        raise _unwritable(where, error) from error


def _unwritable(where: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write records to {where} ({error.strerror}); set BNMEM_RESULTS to a folder that can be written"
    )


def save(record: Record) -> Path:
    """Write the record whole: arrays first, then the JSON that vouches for them. Raises InputError where it cannot."""
    where = folder() / record.experiment
    body = {name: getattr(record, name) for name in _FIELDS - {"arrays"}}
    try:
        where.mkdir(parents=True, exist_ok=True)
        if record.arrays:
            packed = io.BytesIO()
            np.savez_compressed(packed, **record.arrays)
            _write(where / f"{record.key}.npz", packed.getvalue())
        body["arrays"] = _sha256(packed.getvalue()) if record.arrays else None
        body["checksum"] = _checksum(body)
        _write(where / f"{record.key}.json", _pretty(body).encode())
    except OSError as error:
        raise _unwritable(where, error) from error
    return where / f"{record.key}.json"


def load(path: Path) -> Record:
    """One record, proved whole. Raises InputError that names the file when it is damaged, foreign or misnamed."""
    path = Path(path)
    way_out = "restore it (git checkout) or delete it and run again"
    try:
        body = json.loads(path.read_bytes())
        checksum = body.pop("checksum")
        arrays_sum = body["arrays"]
        whole = checksum == _checksum(body) and set(body) == _FIELDS
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged or no record ({type(error).__name__}); {way_out}") from error
    if not whole or path.parent.name != body["experiment"]:
        raise InputError(f"{path} is damaged or was changed by hand: its checksum does not fit; {way_out}")
    if path.stem != _key(body["kind"], body["settings"], body["data"]):
        raise InputError(f"{path} is the record of other settings or images under a wrong name; {way_out}")
    body["arrays"] = _load_arrays(path.with_suffix(".npz"), arrays_sum, way_out) if arrays_sum else {}
    return Record(key=path.stem, **body)


def find(experiment: str, key: str) -> Record | None:
    """The stored record with that key, or None where there is none yet."""
    path = folder() / experiment / f"{key}.json"
    if not path.exists():
        return None
    return load(path)


def stored(experiment: str | None = None) -> list[Path]:
    """All record files, sorted; of one experiment or of all."""
    found = folder().glob(f"{experiment or '*'}/*.json")
    return sorted(path for path in found if re.fullmatch(r"[0-9a-f]{16}", path.stem))


def verified() -> dict[str, set[str]]:
    """Code hash -> all code hashes found to give the same numbers since, itself included (see `add_verified`)."""
    reach: dict[str, set[str]] = {}
    for line in reversed(_ledger()):
        reach.setdefault(line["old"], {line["old"]}).update(reach.get(line["new"], {line["new"]}))
    return reach


def add_verified(old: str, new: str, keys: Iterable[str], how: str) -> None:
    """Note in results/verified.json that recomputing `keys` with code `new` gave the numbers of code `old`."""
    line = {"old": old, "new": new, "keys": sorted(keys), "how": how, "date": datetime.now(UTC).strftime("%Y-%m-%d")}
    text = json.dumps([*_ledger(), line], indent=1, sort_keys=True)
    try:
        _write(folder() / "verified.json", text.encode() + b"\n")
    except OSError as error:
        raise _unwritable(folder(), error) from error


def _ledger() -> list[dict]:
    path = folder() / "verified.json"
    try:
        lines = json.loads(path.read_bytes()) if path.exists() else []
        if not isinstance(lines, list) or not all(
            isinstance(line[end], str) for line in lines for end in ("old", "new")
        ):
            raise ValueError("not a list of code pairs")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it (git checkout) or delete it") from error
    return lines


def _load_arrays(path: Path, checksum: str, way_out: str) -> dict[str, np.ndarray]:
    try:
        raw = path.read_bytes()
        if _sha256(raw) != checksum:
            raise ValueError("checksum")
        with np.load(io.BytesIO(raw), allow_pickle=False) as npz:
            return {name: npz[name] for name in npz.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is damaged or missing ({error}); {way_out}") from error


def _pretty(body: dict) -> str:
    """JSON with one line a list of numbers: short files, readable changes."""
    text = json.dumps(body, indent=1, sort_keys=True, allow_nan=False)
    return re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def _checksum(body: dict) -> str:
    return _sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode())


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _write(path: Path, raw: bytes) -> None:
    """To a file of this process beside the target, flushed to disk, then renamed over it."""
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}.part")  # no record by its name, should it be left
    try:
        with temporary.open("wb") as f:
            f.write(raw)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _git(*args: str) -> str:
    if not (PACKAGE.parent / ".git").exists():  # an installed copy may sit inside somebody else's repository
        return "unknown"
    try:
        done = subprocess.run(["git", *args], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"
