"""A stand-in for Colab: a Python that has what Colab ships and nothing else of this project's environment.

No second installation: the allowed packages, and what they require, are links into the environment that runs the tests.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

# What Colab has of what this project uses. pip and setuptools install the project there.
SHIPPED = (
    "torch torchvision numpy scipy scikit-learn matplotlib sympy joblib tqdm pillow ipykernel ipython setuptools pip"
).split()


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def required(names):
    """The distributions that these need here, extras left out, themselves included."""
    found, todo = {}, [normal(name) for name in names]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or Python
        for line in found[name].requires or []:
            if "extra ==" not in line:
                todo.append(normal(re.match(r"[A-Za-z0-9._-]+", line)[0]))
    return found


def top_level(distribution):
    """The entries of site-packages that belong to a distribution."""
    parts = {Path(str(file)).parts[0] for file in distribution.files or []}
    return {part for part in parts if part not in ("..", "__pycache__", "/")}


def environment(folder):
    """Make it in `folder`; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    here = Path(sysconfig.get_paths()["purelib"])
    for name in {part for found in required(SHIPPED).values() for part in top_level(found)}:
        if (here / name).exists() and not (site / name).exists():
            (site / name).symlink_to(here / name)
    return folder / "bin" / "python"


def kernel(folder, python):
    """Register that Python as the kernel `colab`; returns the variable by which Jupyter finds it."""
    at = folder / "kernels" / "colab"
    at.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (at / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "colab", "language": "python"}))
    return {"JUPYTER_PATH": str(folder)}


def hermetic():
    """Variables under which pip asks no index, builds with what is there, and Python sees no folder of ours."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BNMEM", "PYTHON"))}
    return kept | {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
