"""What the theme leaves out: the box "Re-run this" on notebook pages, what other sites show of a page, and repairs.

A local Sphinx extension, named in _config.yml. Addresses follow from [tool.bnmem] in pyproject.toml; until that is
stamped, pages say nothing about where they lie. `BOOK_URL` overrides the address of the book (a domain of one's own).
"""

import ast
import html
import os
import re
import subprocess
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

GREEK = {r"\gamma": "γ", r"\sigma": "σ", r"\beta": "β", r"\mu": "µ", r"\|": "‖"}
LENGTH = 200  # characters of a description, about what search engines show
REPAIRS = [
    # Thebe is not used here: its script is declared twice, which is an error, and names another host.
    (r"\s*<script>const THEBE_JS_URL[^<]*</script>|\s*<script[^>]*sphinx-thebe\.js[^>]*></script>", ""),
    (r'\s*<script type="text/x-thebe-config">.*?</script>', ""),
    # One and a half megabytes for icons that the style sheet brings as a font as well.
    (r"\s*<script[^>]*fontawesome\.js[^>]*></script>", ""),
    # A button needs a name, a list needs list items.
    (r'<summary>(?=<span class="toctree-toggle")', '<summary aria-label="Pages of this chapter">'),
    ('role="doc-biblioentry"', 'role="listitem"'),
]


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", add_rerun_box)
    app.connect("html-page-context", describe, priority=900)  # after the theme
    app.connect("build-finished", repair)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def repository(root: Path) -> tuple[str, str]:
    """(OWNER/NAME, ref) as stamped."""
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["bnmem"]
    return table["repository"], table["ref"]


def base_url(root: Path) -> str | None:
    """Where the book lies, with a slash at the end; None while nobody knows."""
    owner, _, name = repository(root)[0].partition("/")
    if os.environ.get("BOOK_URL"):
        return os.environ["BOOK_URL"].rstrip("/") + "/"
    if owner.startswith("-"):
        return None
    host = f"{owner.lower()}.github.io"
    return f"https://{host}/" if name.lower() == host else f"https://{host}/{name}/"


def commit(root: Path) -> str:
    """The commit that the pages are built from; the stamped ref where git does not know."""
    done = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else repository(root)[1]


def parameter_names(source: str) -> list[str]:
    """What the `parameters` cell of a percent file assigns."""
    cell = next((c for c in source.split("# %%")[1:] if '"parameters"' in c.partition("\n")[0]), "\n")
    body = ast.parse(cell.partition("\n")[2]).body
    return [target.id for node in body if isinstance(node, ast.Assign) for target in node.targets]


def add_rerun_box(app: Sphinx, doctree: nodes.document) -> None:
    """Before the first section of a notebook's page: how to run it oneself, and what it was made from."""
    folder, _, name = app.env.docname.rpartition("/")
    if folder != "notebooks":
        return
    root = Path(app.srcdir)
    address, ref = repository(root)
    at, there = commit(root), f"https://github.com/{address}"
    known = parameter_names((root / folder / f"{name}.py").read_text(encoding="utf-8"))
    small = "-p profile smoke" if "profile" in known else ""
    box = nodes.admonition(classes=["rerun"])
    box += nodes.title("", "Re-run this")
    colab = f"https://colab.research.google.com/github/{address}/blob/{ref}/{folder}/{name}.ipynb"
    unset = " (from a published book: this build has no address yet)" if address.startswith("-") else ""
    box += _line("In the browser, nothing to install: ", ("open it in Colab", colab), f"{unset}.")
    box += _line("On your machine, small and from nothing; ", ("more on parameters", _howto(app)), ":")
    run = f".venv/bin/papermill \\\n    {folder}/{name}.ipynb out.ipynb {small}".rstrip()
    box += _shell(f"BNMEM_RESULTS=my-results {run}" if small else run)
    box += _line("As shown here, from stored records, where it has any; the second line computes everything anew:")
    box += _shell(f"make notebooks NAMES={name}\nmake fresh NAMES={name}")
    made = ["Made from commit ", nodes.literal("", at[:7]), ": "]
    made += [("the source", f"{there}/blob/{at}/{folder}/{name}.py")]
    if (root / "results" / name).is_dir():
        made += [", ", ("the records", f"{there}/tree/{at}/results/{name}")]
    box += _line(*made, ".")
    page = doctree.next_node(nodes.section)
    first = next((i for i, child in enumerate(page.children) if isinstance(child, nodes.section)), len(page))
    page.insert(first, box)


def _howto(app: Sphinx) -> str:
    return app.builder.get_relative_uri(app.env.docname, "book/howto_papermill")


def _line(*parts) -> nodes.paragraph:
    """A paragraph of texts, nodes and (text, address) links."""
    line = nodes.paragraph()
    for part in parts:
        if isinstance(part, tuple):
            line += nodes.reference("", part[0], refuri=part[1], internal=not part[1].startswith("http"))
        else:
            line += nodes.Text(part) if isinstance(part, str) else part
    return line


def _shell(command: str) -> nodes.literal_block:
    return nodes.literal_block(command, command, language="bash")


def describe(app: Sphinx, pagename: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Description, Open Graph and the canonical address of a page."""
    root, text = Path(app.srcdir), summary(doctree) if doctree else app.config.html_title
    tags = {"og:title": context.get("title") or app.config.html_title, "og:description": text, "og:type": "article"}
    tags["og:site_name"] = app.config.html_title
    base = base_url(root)
    if base:
        context["pageurl"] = tags["og:url"] = f"{base}{pagename}.html"
        tags |= {"og:image": f"{base}_static/result.png", "og:image:alt": "Accuracy on flipped training labels"}
    lines = [f'<meta name="description" content="{_quoted(text)}"/>']
    lines += [f'<meta property="{name}" content="{_quoted(value)}"/>' for name, value in tags.items()]
    lines.append('<meta name="twitter:card" content="summary_large_image"/>')
    context["metatags"] = context.get("metatags", "") + "\n    " + "\n    ".join(lines)


def summary(doctree: nodes.document) -> str:
    """The first paragraph as plain text, cut at a word."""
    first = doctree.next_node(nodes.paragraph)
    text = " ".join(first.astext().split()) if first else ""
    for latex, letter in GREEK.items():
        text = text.replace(latex, letter)
    if len(text) <= LENGTH:
        return text
    return text[: LENGTH - 1].rsplit(" ", 1)[0].rstrip(",;:") + "…"


def _quoted(text: str) -> str:
    return html.escape(re.sub("<[^>]*>", "", text), quote=True)


def repair(app: Sphinx, exception: Exception | None) -> None:
    """Apply REPAIRS to every page that was written."""
    if exception:
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for pattern, better in REPAIRS:
            text = re.sub(pattern, better, text, flags=re.S)
        page.write_text(text, encoding="utf-8")
