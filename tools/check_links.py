"""Ask every link of the built book that leads to another site. Needs the network; CI asks once a month.

    python tools/check_links.py [FOLDER]      FOLDER holds the HTML; without it the book is built first

A link is dead when the site says that the page is not there (404, 410) or there is no such site, twice. Sites that
refuse robots or are down for a moment are listed and do not count.
"""

import http.client
import sys
import tempfile
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

DEAD = (404, 410)
AGENT = {"User-Agent": "Mozilla/5.0 (link check of a public book)"}


class Links(HTMLParser):
    """Collects the addresses that a page's <a> lead to."""

    def __init__(self):
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag, attributes):
        address = dict(attributes).get("href") or ""
        if tag == "a" and address.startswith(("http://", "https://")):
            self.found.add(address.partition("#")[0])


def links(folder: Path) -> dict[str, list[str]]:
    """Address of another site -> the pages that lead there."""
    pages: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.html")):
        parser = Links()
        parser.feed(path.read_text(encoding="utf-8"))
        for address in parser.found:
            pages.setdefault(address, []).append(str(path.relative_to(folder)))
    return pages


def ask(address: str, tries: int = 2) -> str:
    """ "ok", "dead: ..." or "unsure: ..."."""
    answer = ""
    for _ in range(tries):
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=AGENT), timeout=30):
                return "ok"
        except urllib.error.HTTPError as error:
            answer = f"{'dead' if error.code in DEAD else 'unsure'}: {error.code}"
        except urllib.error.URLError as error:
            answer = f"{'dead' if 'Name or service' in str(error.reason) else 'unsure'}: {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            answer = f"unsure: {error}"
    return answer


def check(folder: Path) -> int:
    """Print what does not answer; how many links are dead."""
    dead = 0
    for address, pages in sorted(links(folder).items()):
        answer = ask(address)
        if answer != "ok":
            print(f"{address}: {answer} (in {', '.join(pages[:3])})", flush=True)
        dead += answer.startswith("dead")
    print(f"{dead} dead links")
    return dead


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(1 if check(Path(sys.argv[1])) else 0)
    from build_book import build

    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(1 if check(build(Path(scratch)).parent) else 0)
