"""Write book/results_index.md: every figure and every quoted number -> its notebook -> its records -> the command.

python tools/results_index.py          # write the page
python tools/results_index.py --check  # exit 1 where it would change

Read from the notebooks (figures from the .py, records from the outputs of the .ipynb) and from the pages' glue.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "book" / "results_index.md"
FIGURE = re.compile(r'"figure": \{"name": "([^"]+)", "caption": "((?:[^"\\]|\\.)*)"')
EXPERIMENT = re.compile(r"^from bnmem import exp_(\w+) as exp$", re.M)
RECORD = re.compile(r"record ([0-9a-f]{16})\b")
GLUE = re.compile(r"\{glue:text\}`\.\./notebooks/(\w+)\.ipynb::([\w.-]+):s`")
HEAD = """# Where every figure and number comes from

This book checks the claims of {cite}`doan2026batch`, and its results are not typed by hand. A figure or a table is made
by its notebook, a measured number in prose is handed over by a notebook, and the notebook reads records: files that say
what was computed, from what, when and with which code. This page is generated (`python tools/results_index.py`). A test
fails when it is out of date, when a figure or number leads to no notebook, or a notebook to a record that is not there.

With the environment of `make` active (`. .venv/bin/activate`), `python -m bnmem verify KEY` recomputes one record and
compares it; `python -m bnmem run NAME --fresh` recomputes a whole experiment. Keys are file names in `results/`; each
notebook lists its own in its last table.
"""


def notebooks() -> dict[str, dict]:
    """name -> title, figures [(name, what its caption begins with)], experiment or None, record keys."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        experiment = EXPERIMENT.search(source)
        outputs = (ROOT / "notebooks" / f"{path.stem}.ipynb").read_text(encoding="utf-8")
        cells = json.loads(outputs)["cells"]
        shown = json.dumps([cell.get("outputs") for cell in cells if cell["cell_type"] == "code"])
        found[path.stem] = {
            "title": re.search(r"^# # (.+)$", source, re.M)[1],
            "figures": [(name, beginning(json.loads(f'"{caption}"'))) for name, caption in FIGURE.findall(source)],
            "experiment": experiment and experiment[1],
            "records": sorted(set(RECORD.findall(shown))),
        }
    return found


def beginning(caption: str) -> str:
    """The first sentence, and the second where the first is only a heading; bars do not end a table's cell."""
    sentences = caption.rstrip(".").split(". ")
    return ". ".join(sentences[: 1 if len(sentences[0].split()) > 4 else 2]).replace("|", "\\|")


def quoted() -> dict[str, dict[str, set[str]]]:
    """notebook -> page -> glue keys that the page quotes."""
    found: dict[str, dict[str, set[str]]] = {}
    for path in sorted((ROOT / "book").glob("*.md")):
        for notebook, key in GLUE.findall(path.read_text(encoding="utf-8")):
            found.setdefault(notebook, {}).setdefault(path.stem, set()).add(key)
    return found


def page() -> str:
    """The page's text."""
    lines, pages = [HEAD], quoted()
    for name, notebook in notebooks().items():
        lines.append(f"## {notebook['title']}\n")
        command = f"python -m bnmem run {notebook['experiment'].replace('_', '-')}" if notebook["experiment"] else ""
        if notebook["records"]:
            where = f"`results/{notebook['experiment']}/`"
            lines.append(f"Records: {len(notebook['records'])} in {where}. Recompute: `{command} --fresh`.\n")
        elif name == "scorecard":
            lines.append("Records: all of them. Recompute what is missing: `python -m bnmem run grid`.\n")
        else:
            lines.append(f"No records: the notebook computes what it shows, `python tools/notebooks.py {name}`.\n")
        lines += ["| figure | shows |", "|---|---|"]
        lines += [f"| {{numref}}`{figure}` | {caption} |" for figure, caption in notebook["figures"]]
        numbers = [f"[{stem}]({stem}.md) ({len(keys)})" for stem, keys in pages.get(name, {}).items()]
        lines.append(f"\nNumbers quoted in prose: {', '.join(numbers) or 'none'}.\n")
    return "\n".join(lines)


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("up to date" if same else "out of date: run python tools/results_index.py")
        sys.exit(0 if same else 1)
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
