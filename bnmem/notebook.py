"""What the notebooks share: their parameters, tables, sentences with computed numbers, values for the book's prose.

Works in Jupyter, Colab and papermill; needs nothing but IPython there.
"""

import re
from collections.abc import Iterable

from IPython.display import Markdown, display

from bnmem.errors import InputError
from bnmem.settings import reject_unknown

CONTROLS = ("profile", "fresh")
TOGETHER = re.compile(r"\[[+\-−]?\.?\d[^\[\]]*\]|\d+ / \d+ / \d+")  # intervals and counts: no line breaks inside


def parameters(namespace: dict, before: set[str], settings: type) -> dict:
    """The notebook's parameters as keyword arguments: what its variables hold for `profile`, `fresh` and each setting.

    `before` is the set of variable names taken in the set-up cell. A name that appeared since and is no parameter is
    an InputError with the list of names (papermill itself only warns). That is checked once: `before` then takes in
    `*`, and a reader who runs the cell again may have made variables of their own.
    """
    known = [*CONTROLS, *settings.__dataclass_fields__]
    if "*" not in before:
        reject_unknown([n for n in namespace if n not in before and not n.startswith("_") and n != "before"], known)
        before.add("*")
    if not isinstance(namespace.get("fresh", False), bool):
        raise InputError(f"fresh must be True or False, not {namespace['fresh']!r}")
    return {name: namespace[name] for name in known if name in namespace}


def settings_of(given: dict, settings: type):
    """The settings object of `parameters(...)`: the profile's, changed where a parameter is not None. The smallest
    profile is announced: what the page then shows is no result."""
    if given["profile"] == "smoke":
        say("**Smoke size.** It shows that everything works; its numbers are no results, the text is the full size's.")
    return settings.of(given["profile"], {name: value for name, value in given.items() if name not in CONTROLS})


def say(text: str) -> None:
    """Show Markdown."""
    display(Markdown(text))


def table(rows: list[dict[str, str]], empty: str = "Nothing to show.") -> None:
    """Show rows with equal keys as a table."""
    if not rows:
        return say(empty)
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_together(str(v)) for v in row.values()] for row in rows)]
    say("\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines))


def notes(lines: Iterable[str]) -> None:
    """Show what a reader must know about the records, if anything."""
    for line in lines:
        say(f"**Note.** {line}")


def glue(**values: str) -> None:
    """Hand texts to the book's prose pages: MyST-NB's glue, without the need to have MyST-NB installed.

    Quoted, since MyST-NB reads a text as a Python literal where it can: 0.30 would come out as 0.3.
    """
    for name, text in values.items():
        meta = {"scrapbook": {"name": name, "mime_prefix": "application/papermill.record/"}}
        display({"application/papermill.record/text/plain": repr(_together(text))}, metadata=meta, raw=True)


def _together(text: str) -> str:
    return TOGETHER.sub(lambda found: found[0].replace(" ", "\u00a0"), text)
