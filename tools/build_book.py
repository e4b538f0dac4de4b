"""Build the HTML from scratch, with warnings as errors: an unchanged second build would hide them.

python tools/build_book.py [FOLDER]     the page to open is FOLDER/_build/html/index.html; FOLDER defaults to .
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build(folder: Path = ROOT) -> Path:
    """The page to open. Raises CalledProcessError when the build warns or fails."""
    output = folder / "_build"
    for stale in (output / ".doctrees", output / "html"):
        shutil.rmtree(stale, ignore_errors=True)
    command = ["build", str(ROOT), "-q", "-n", "-W", "--keep-going", "--path-output", str(folder)]
    subprocess.run([sys.executable, "-c", "from jupyter_book.cli.main import main; main()", *command], check=True)
    return output / "html" / "index.html"


if __name__ == "__main__":
    print(f"open {build(*map(Path, sys.argv[1:2]))}")
