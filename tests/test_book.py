"""The book: builds without a warning, needs no other host, keeps to the pitfalls that are known."""

import ast
import importlib.util
import json
import re

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup

from .conftest import ROOT


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text())
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())


def toc_files(node=TOC):
    if isinstance(node, dict):
        own = [node[key] for key in ("file", "root") if key in node]
        return own + [f for value in node.values() for f in toc_files(value)]
    return [f for item in node for f in toc_files(item)] if isinstance(node, list) else []


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The built pages: name -> soup. Raises where the build warns."""
    html = tool("build_book").build(tmp_path_factory.mktemp("book")).parent
    return {str(p.relative_to(html)): BeautifulSoup(p.read_text(), "html.parser") for p in html.rglob("*.html")}


def test_every_page_of_the_table_of_contents_is_built_and_the_first_leads_there(pages):
    assert {f"{name}.html" for name in toc_files()} <= set(pages)
    assert "index.html" in pages


def test_the_chapter_shows_its_figures_with_alt_text_and_no_page_has_an_image_without(pages):
    notebook = pages["notebooks/forced_memorization.html"]
    assert len(notebook.select("figure img")) == 4
    for name, page in pages.items():
        for image in page.select("article img, .bd-article img"):
            assert len(image.get("alt", "")) > 10, (name, image)
            assert not re.search(r"\.(png|svg)$", image["alt"]), (name, image)


def test_no_page_asks_another_host_for_anything(pages):
    for name, page in pages.items():
        loaded = [t.get("src") for t in page.select("script[src], img[src], iframe[src]")]
        loaded += [t.get("href") for t in page.select("link[rel=stylesheet], link[rel=preload], link[rel~=icon]")]
        assert not [url for url in loaded if re.match(r"(https?:)?//", url)], name
        # sphinx-thebe names a host in a constant and would load from it only behind its launch button
        assert not page.select(".thebe-launch-button"), name
        assert "cdn.jsdelivr" not in str(page), name


def test_the_colab_button_opens_the_notebook_at_the_stamped_address_and_prose_has_none(pages):
    address, ref = tool("stamp").current()
    for name, page in pages.items():
        links = {a["href"] for a in page.select("a[href*='colab.research.google.com']")}
        if name.startswith("notebooks/"):
            ipynb = name.replace(".html", ".ipynb")
            assert links == {f"https://colab.research.google.com/github/{address}/blob/{ref}/{ipynb}"}
            assert (ROOT / ipynb).exists()
        else:
            assert not links, name


def test_numbers_in_the_prose_are_glued_and_arrive(pages):
    for name in ("book/intro.html", "book/forced_memorization.html"):
        text = pages[name].get_text()
        assert re.search(r"[+-]0\.\d\d \[[+-]0\.\d\d,\s[+-]0\.\d\d\]", text), name
        assert "fm-" not in text and "glue" not in text


def test_internal_links_and_anchors_resolve(pages):
    from urllib.parse import unquote, urljoin

    for name, page in pages.items():
        for link in page.select("a[href]"):
            href = link["href"]
            if re.match(r"[a-z]+:|//", href) or href == "#":
                continue
            target, _, anchor = urljoin(f"http://book/{name}", href).removeprefix("http://book/").partition("#")
            target = unquote(target.partition("?")[0])
            if target.endswith(".html") and target in pages:
                assert not anchor or pages[target].find(id=unquote(anchor)) is not None, (name, href)
            elif target.endswith(".html"):
                pytest.fail(f"{name} links to {href}, which is not there")


def test_known_pitfalls_of_the_configuration():
    assert "notebooks/*.py" in CONFIG["exclude_patterns"] and ".venv" in CONFIG["exclude_patterns"]
    assert CONFIG["execute"]["exclude_patterns"] == ["notebooks/*"]
    assert CONFIG["execute"]["raise_on_error"] is True and CONFIG["execute"]["allow_errors"] is False
    assert CONFIG["sphinx"]["recursive_update"] is True
    assert CONFIG["sphinx"]["config"]["html_static_path"] == ["book/_static"] and not (ROOT / "_static").exists()
    assert not (ROOT / "book/_static/mathjax/LICENSE").read_text().find("Apache License") < 0


@pytest.mark.parametrize("name", [f for f in toc_files() if f.startswith("book/")])
def test_prose_has_no_kernel_and_every_chapter_cites_the_paper(name):
    text = (ROOT / f"{name}.md").read_text()
    assert "kernelspec" not in text and re.match(r"# \S", text)
    assert name == "book/references" or "howto" in name or "doan2026batch" in text


def test_every_glued_text_comes_out_as_it_was_written():
    """MyST-NB evaluates a glued text as a Python literal where it can, so each is stored as a quoted string."""
    texts = [
        (path.name, output["data"]["application/papermill.record/text/plain"])
        for path in (ROOT / "notebooks").glob("*.ipynb")
        for cell in nbformat.read(path, as_version=4).cells
        for output in cell.get("outputs", [])
        if "scrapbook" in output.get("metadata", {})
    ]
    assert texts
    for name, text in texts:
        assert isinstance(ast.literal_eval(text), str), (name, text)


def test_glued_names_exist_in_the_notebooks():
    stored = set()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            for output in cell.get("outputs", []):
                if "scrapbook" in output.get("metadata", {}):
                    stored.add((f"notebooks/{path.name}", output["metadata"]["scrapbook"]["name"]))
    used = set()
    for path in (ROOT / "book").glob("*.md"):
        found = re.findall(r"\{glue:text\}`\.\./([^:`]+)::([^:`]+):s`", path.read_text())
        assert len(found) == path.read_text().count("{glue:text}"), path.name
        used |= set(found)
    assert used and used <= stored


def test_the_cover_picture_is_drawn_from_the_records(committed):
    picture = tool("result_picture")
    assert not picture.differs(picture.draw(), picture.TARGET.read_bytes())
