"""Build the HTML from scratch, with warnings as errors: an unchanged second build would hide them.

python tools/build_book.py [FOLDER]     the page to open is FOLDER/_build/html/index.html; FOLDER defaults to .
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build(folder: Path = ROOT, source: Path = ROOT) -> Path:
    """The page to open, of the project in `source`. Raises CalledProcessError when the build warns or fails."""
    output = folder / "_build"
    for stale in (output / ".doctrees", output / "html"):
        shutil.rmtree(stale, ignore_errors=True)
    command = ["build", str(source), "-q", "-n", "-W", "--keep-going", "--path-output", str(folder)]
    subprocess.run([sys.executable, "-c", "from jupyter_book.cli.main import main; main()", *command], check=True)
    lead(output / "html")
    return output / "html" / "index.html"


def lead(html: Path) -> None:
    """Rewrite index.html, which only leads on: in the language of the book, with the first page's title and address,
    and with a link for whom is not led."""
    old = (html / "index.html").read_text(encoding="utf-8")
    first = re.search(r"url=([^\"']+\.html)", old)[1]
    page = (html / first).read_text(encoding="utf-8")
    title = re.search(r"<title>.*?</title>", page, re.S)[0]
    kept = re.findall(r'<(?:meta (?:name="description"|property=)|link rel="canonical")[^>]*>', page)
    icon = '<link rel="icon" href="_static/logo.svg"/>'
    head = ["<meta charset='utf-8'>", f'<meta http-equiv="Refresh" content="0; url={first}">', title, icon, *kept]
    body = f'<main><h1>This book begins <a href="{first}">here</a></h1></main>'
    text = "\n".join(["<!DOCTYPE html>", '<html lang="en"><head>', *head, f"</head><body>{body}</body></html>", ""])
    (html / "index.html").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    print(f"open {build(*map(Path, sys.argv[1:2]))}")
