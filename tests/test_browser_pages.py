"""What stands in the pages as a fork publishes them: heads, boxes, numbers, the order of reading. Needs no browser."""

import re
import subprocess

import pytest
from bs4 import BeautifulSoup

from . import published
from .conftest import ROOT
from .test_book import toc_files, tool

PAGES = [f"{name}.html" for name in toc_files()]
NOTEBOOKS = [name for name in toc_files() if name.startswith("notebooks/")]
BASE = "https://some-one.github.io/book.mem/"
every_page = pytest.mark.parametrize("name", PAGES)
every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


@pytest.fixture(scope="module")
def soup():
    html = published.book()
    return lambda name: BeautifulSoup((html / name).read_text(encoding="utf-8"), "html.parser")


@every_page
def test_the_head_tells_other_sites_what_the_page_is(soup, name):
    page = soup(name)
    meta = {t.get("name") or t.get("property"): t["content"] for t in page.select("meta[content]")}
    assert 40 <= len(meta["description"]) <= 200 and "\\" not in meta["description"]
    assert meta["og:title"] and meta["og:description"] == meta["description"]
    assert meta["og:url"] == BASE + name == page.select_one("link[rel=canonical]")["href"]
    assert (published.book() / meta["og:image"].removeprefix(BASE)).is_file()
    assert (published.book() / name).parent.joinpath(page.select_one("link[rel~=icon]")["href"]).is_file()


def test_descriptions_differ_from_page_to_page(soup):
    texts = [soup(name).select_one("meta[name=description]")["content"] for name in PAGES]
    assert len(set(texts)) == len(texts)


def test_the_first_address_is_the_covers(soup):
    page = soup("index.html")
    assert page.html["lang"] == "en" and page.select_one("link[rel=canonical]")["href"] == f"{BASE}book/intro.html"
    assert page.title.text == soup("book/intro.html").title.text and page.select_one("a")["href"] == "book/intro.html"


def test_an_unstamped_book_names_no_address_of_its_own(monkeypatch):
    extension = tool("book_extension")
    monkeypatch.delenv("BOOK_URL", raising=False)
    if tool("stamp").current()[0].startswith("-"):
        assert extension.base_url(ROOT) is None
    assert extension.base_url(published.repository()) == BASE
    monkeypatch.setenv("BOOK_URL", "https://books.example.org/bn")
    assert extension.base_url(ROOT) == "https://books.example.org/bn/"


@every_notebook
def test_the_box_tells_how_to_run_it_and_everything_in_it_exists(soup, name):
    box = soup(f"{name}.html").select_one(".admonition.rerun")
    links = {a.text: a["href"] for a in box.select("a[href]")}
    repository, at = published.repository(), published.git(published.repository(), "rev-parse", "HEAD").strip()
    there = f"https://github.com/{published.ADDRESS}"
    colab = f"https://colab.research.google.com/github/{published.ADDRESS}/blob/{published.REF}/{name}.ipynb"
    assert links["open it in Colab"] == colab
    assert links["the source"] == f"{there}/blob/{at}/{name}.py"
    for url in (colab, *(u for text, u in links.items() if text in ("the source", "the records"))):
        ref, _, path = re.search(r"/(?:blob|tree)/(.+)", url)[1].partition("/")
        done = subprocess.run(
            [*published.GIT, "-C", repository, "cat-file", "-e", f"{ref}:{path}"], capture_output=True
        )
        assert done.returncode == 0, url
    own = name.removeprefix("notebooks/")
    assert ("the records" in links) == (repository / "results" / own).is_dir()
    commands = "\n".join(block.text for block in box.select("pre"))
    given = re.search(rf"papermill \\\n +{name}\.ipynb out\.ipynb((?: -p \w+ \w+)*)", commands)[1]
    known = tool("book_extension").parameter_names((ROOT / f"{name}.py").read_text())
    assert "BNMEM_RESULTS=my-results" in commands  # a first try replaces no record of the book
    assert given and set(re.findall(r"-p (\w+)", given)) <= set(known)
    assert f"make notebooks NAMES={own}" in commands and re.search(
        r"^notebooks:", (ROOT / "Makefile").read_text(), re.M
    )


@every_notebook
def test_code_is_folded_where_it_is_not_the_point(soup, name):
    """The set-up and what draws figures; the parameters stay open."""
    cells = [cell for cell in soup(f"{name}.html").select("div.cell") if cell.select_one(".cell_input")]
    for cell in cells:
        if "tag_setup" in cell["class"] or cell.select_one("figure"):
            assert cell.select_one("details.hide:not([open])"), cell.text[:200]
        if "tag_parameters" in cell["class"]:
            assert not cell.select_one("details")


@every_page
def test_figures_and_formulas_with_a_name_have_a_number(soup, name):
    page = soup(name)
    for figure in page.select("article figure"):
        assert re.match(r"Fig\. [\d.]+", figure.select_one(".caption-number").text), (name, figure.get("id"))
        assert len(figure.select_one(".caption-text").text) > 20
    for number in page.select(".eqno"):
        assert re.match(r"\([\d.]+\)", number.text)
    for statement in page.select("div.proof > p.admonition-title"):
        assert re.search(r"\d|Proof", statement.text), statement.text


def test_next_and_previous_go_through_the_book_in_the_order_of_its_table(soup):
    here, seen = PAGES[0], []
    while here:
        seen.append(here)
        page = soup(here)
        following, before = page.select_one("link[rel=next]"), page.select_one("link[rel=prev]")
        assert len(seen) == 1 or before["href"].split("/")[-1] == seen[-2].split("/")[-1]
        assert not following or page.select_one(".right-next")["href"] == following["href"]
        here = following and str((published.book() / here).parent.joinpath(following["href"]).resolve())
        here = here and here.removeprefix(f"{published.book().resolve()}/")
    assert seen == PAGES
