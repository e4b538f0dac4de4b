"""Execute the notebooks and keep the committed .ipynb files true.

    python tools/notebooks.py                   default profile, from records; rewrite only what differs
    python tools/notebooks.py --fresh           the same, everything computed anew
    python tools/notebooks.py --profile smoke   compute at smoke size in a scratch folder, write nothing

The percent .py file is the source. Each notebook runs in an empty scratch folder; its texts are compared after
sanitising, its images by tolerance.
"""

import argparse
import base64
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
import numpy as np
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
IMAGE_TOLERANCE = 2.0  # mean absolute difference of pixels, of 255
TIMEOUT = 3600
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}


def source_notebook(path: Path) -> nbformat.NotebookNode:
    """The notebook that a percent file describes, without outputs; cell ids follow from the position."""
    nb = jupytext.read(path)
    for i, cell in enumerate(nb.cells):
        cell["id"] = f"{path.stem.replace('_', '-')}-{i:02d}"
    nb.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    nb.nbformat, nb.nbformat_minor = 4, 5
    return nb


def execute(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run it in an empty folder; raises CellExecutionError."""
    os.environ |= {"PYTHONHASHSEED": "0", "TQDM_DISABLE": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        options = {"timeout": TIMEOUT, "kernel_name": "python3", "record_timing": False}
        options["extra_arguments"] = ["--log-level=40"]  # errors only
        NotebookClient(nb, resources={"metadata": {"path": scratch}}, **options).execute()
    nb.metadata["language_info"] = {"name": "python"}
    return nb


def sanitised(text: str) -> str:
    """Text without what differs from run to run."""
    text = re.sub(r"0x[0-9a-f]{6,}", "0x", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def difference(old: nbformat.NotebookNode, new: nbformat.NotebookNode) -> str | None:
    """What differs between two executed notebooks beyond sanitising and tolerance, or None."""
    if [(c.cell_type, c.source, c.metadata) for c in old.cells] != [
        (c.cell_type, c.source, c.metadata) for c in new.cells
    ]:
        return "source or metadata"
    for i, (a, b) in enumerate(zip(old.cells, new.cells, strict=True)):
        left, right = a.get("outputs", []), b.get("outputs", [])
        if len(left) != len(right):
            return f"number of outputs of cell {i}"
        for x, y in zip(left, right, strict=True):
            what = _output_difference(x, y)
            if what:
                return f"{what} of cell {i}"
    return None


def _output_difference(x, y) -> str | None:
    if x.output_type != y.output_type:
        return "kind of output"
    if x.output_type == "stream":
        return None if sanitised(x.text) == sanitised(y.text) else "text"
    if set(x.data) != set(y.data) or x.metadata != y.metadata:
        return "kind of output"
    for mime in x.data:
        if mime == "image/png":
            a, b = (np.asarray(Image.open(io.BytesIO(base64.b64decode(o.data[mime]))), float) for o in (x, y))
            if a.shape != b.shape or abs(a - b).mean() > IMAGE_TOLERANCE:
                return "image"
        elif sanitised(str(x.data[mime])) != sanitised(str(y.data[mime])):
            return "text"
    return None


def run(path: Path, profile: str | None, fresh: bool) -> str:
    """Execute one notebook; what became of it, in a few words."""
    nb = source_notebook(path)
    values = [f"profile = {profile!r}"] * bool(profile) + ["fresh = True"] * fresh
    if values:
        at = next(i for i, cell in enumerate(nb.cells) if "parameters" in cell.metadata.get("tags", [])) + 1
        nb.cells.insert(at, nbformat.v4.new_code_cell("\n".join(values), id="injected"))
    done = execute(nb)
    if profile:
        return "computed, nothing kept"
    done.cells = [cell for cell in done.cells if cell.id != "injected"]
    for i, cell in enumerate((c for c in done.cells if c.cell_type == "code"), 1):
        cell.execution_count = i
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = i
    target = path.with_suffix(".ipynb")
    old = nbformat.read(target, as_version=4) if target.exists() else None
    what = difference(old, done) if old else "it was missing"
    if what is None:
        return "equal to the committed one"
    nbformat.write(done, target)
    return f"rewritten ({what})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebook names (default: all)")
    parser.add_argument("--profile", choices=("smoke", "grid", "paper"), help="compute at another size, write nothing")
    parser.add_argument("--fresh", action="store_true", help="ignore records")
    args = parser.parse_args()
    paths = [p for p in sorted(FOLDER.glob("*.py")) if not args.names or p.stem in args.names]
    unknown = set(args.names) - {p.stem for p in paths}
    if unknown:
        parser.error(
            f"no notebook {', '.join(sorted(unknown))}; there are {', '.join(p.stem for p in FOLDER.glob('*.py'))}"
        )
    scratch = tempfile.TemporaryDirectory()
    if args.profile:
        os.environ["BNMEM_RESULTS"] = scratch.name
    failed = 0
    for i, path in enumerate(paths, 1):
        print(f"[{i}/{len(paths)}] {path.stem} ...", end=" ", flush=True)
        start = time.monotonic()
        try:
            outcome = run(path, args.profile, args.fresh)
        except CellExecutionError as error:
            failed += 1
            outcome = f"FAILED\n{re.sub(chr(27) + r'[^m]*m', '', str(error))}"
        print(f"{outcome}, {time.monotonic() - start:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
