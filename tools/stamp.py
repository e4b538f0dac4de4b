"""Write the public address of the repository, and the ref that Colab opens, into every file that names them.

    python tools/stamp.py                       say what is stamped now
    python tools/stamp.py OWNER/NAME REF        stamp

The address lives in pyproject.toml ([tool.bnmem]); the other files follow. Until it is known it is
`-owner-not-set-/bnmem`: account names cannot begin with a hyphen, so nobody can register it.
"""

import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OWNER_NAME = r"-owner-not-set-/bnmem|[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]+"
REF = r"[A-Za-z0-9][A-Za-z0-9._/-]*"
# file -> patterns with the address (a) and the ref (r)
PLACES = {
    "pyproject.toml": [rf'repository = "(?P<a>{OWNER_NAME})"', rf'ref = "(?P<r>{REF})"'],
    "_config.yml": [rf"url: https://github\.com/(?P<a>{OWNER_NAME})", rf"branch: (?P<r>{REF})"],
    "CITATION.cff": [rf'repository-code: "https://github\.com/(?P<a>{OWNER_NAME})"'],
}
NOTEBOOK = [rf'REPOSITORY, REF = "(?P<a>{OWNER_NAME})", "(?P<r>{REF})"']


def places(root: Path = ROOT) -> dict[Path, list[str]]:
    """Every file that names the address or the ref, with the patterns that find them."""
    notebooks = [*sorted((root / "notebooks").glob("*.py")), *sorted((root / "notebooks").glob("*.ipynb"))]
    return {root / name: patterns for name, patterns in PLACES.items()} | {path: NOTEBOOK for path in notebooks}


def current(root: Path = ROOT) -> tuple[str, str]:
    """(address, ref) as pyproject.toml has them."""
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["bnmem"]
    return table["repository"], table["ref"]


def found(path: Path, patterns: list[str]) -> list[dict[str, str]]:
    """What each pattern finds in a file; raises ValueError where one finds nothing, or more than one thing."""
    text = path.read_text(encoding="utf-8").replace('\\"', '"')
    rows = []
    for pattern in patterns:
        matches = list(re.finditer(pattern, text))
        if len(matches) != 1:
            raise ValueError(f"{path.name}: {len(matches)} places fit {pattern}")
        rows.append({k: v for k, v in matches[0].groupdict().items() if v})
    return rows


def stamp(address: str, ref: str, root: Path = ROOT) -> list[Path]:
    """Write both everywhere; the files that changed. Raises ValueError for an impossible address or ref."""
    if not re.fullmatch(OWNER_NAME, address) or not re.fullmatch(REF, ref):
        raise ValueError(f"not an OWNER/NAME and a ref: {address!r} {ref!r}")
    if not address.partition("/")[2].strip("."):
        raise ValueError(f"not a repository name: {address!r}")
    for path, patterns in places(root).items():  # all or none
        found(path, patterns)
    changed = []
    for path, patterns in places(root).items():
        old = path.read_text(encoding="utf-8")
        new = old
        for pattern in patterns:
            quoted = pattern.replace('"', '\\\\"') if path.suffix == ".ipynb" else pattern
            new = re.sub(quoted, lambda m: _filled(m, address, ref), new)
        if path.suffix == ".ipynb":
            json.loads(new)
        if new != old:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def _filled(match: re.Match, address: str, ref: str) -> str:
    text = match[0]
    for name, value in (("r", ref), ("a", address)):  # the ref stands behind the address: right to left
        if match.groupdict().get(name):
            start, end = (match.start(name) - match.start(), match.end(name) - match.start())
            text = text[:start] + value + text[end:]
    return text


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print("{} at {}".format(*current()))
    elif len(sys.argv) == 3:
        try:
            print(f"stamped {len(stamp(*sys.argv[1:]))} files")
        except ValueError as error:
            sys.exit(f"bnmem: {error}")
    else:
        sys.exit("usage: python tools/stamp.py [OWNER/NAME REF]")
