"""Every page in a real browser: loads clean, typeset, accessible, narrow enough; player, search and theme work."""

import functools
import re

import pytest

from . import browser, published
from .test_book import toc_files

PAGES = [f"{name}.html" for name in toc_files()] + ["search.html", "genindex.html", "prf-prf.html"]
MEGABYTES = 3
every_page = pytest.mark.parametrize("name", PAGES)


@pytest.fixture(scope="module")
def base():
    with browser.served(published.book()) as address:
        yield address


@pytest.fixture(scope="module")
def context():
    executable = browser.find()
    if executable is None:
        pytest.skip(f"no browser here ({', '.join(browser.NAMES)}): apt-get install chromium")
    with browser.opened(executable) as opened:
        yield opened


@pytest.fixture(scope="module")
def visited(context, base):
    """name -> what was seen there; each page is visited once."""
    return functools.cache(lambda name: browser.visit(context, base, name))


@pytest.fixture
def page(context):
    page = context.new_page()
    page.set_viewport_size({"width": 1440, "height": 900})
    yield page
    page.close()


@every_page
def test_it_loads_without_an_error_and_asks_no_other_host(visited, name):
    found = visited(name)
    assert (found.errors, found.outside, found.missing) == ([], [], [])


@every_page
def test_all_formulas_are_typeset(visited, name):
    seen = visited(name).seen
    assert seen["failed"] == [] and seen["left"] == [] and seen["typeset"] >= seen["formulas"]


@every_page
def test_all_images_are_loaded_and_say_what_they_show(visited, name):
    for image in visited(name).seen["images"]:
        assert image["width"] > 0, image
        assert len(image["alt"]) > 5 and not re.search(r"\.(png|svg)$", image["alt"]), image


@every_page
def test_nothing_makes_the_page_wider_than_a_phone_a_tablet_or_a_desktop(visited, name):
    assert visited(name).too_wide == {}


@every_page
def test_accessibility_has_no_serious_violation_on_light_and_on_dark_ground(visited, name):
    assert visited(name).violations == []


@every_page
def test_it_weighs_less_than_three_megabytes_without_mathjax(visited, name):
    assert 10_000 < visited(name).seen["bytes"] < MEGABYTES * 1e6


def test_the_looks_would_find_what_is_wrong(context, tmp_path):
    """The checks above on a page with one fault of each kind."""
    (tmp_path / "bad.html").write_text(
        "<!DOCTYPE html><html lang='en'><title>bad</title><main><h1>bad</h1><div style='width: 900px'>wide</div>"
        "<span class='math'>\\(x\\)</span><img src='none.png'><p style='color: #ddd; background: #fff'>pale</p>"
        "<img src='https://example.org/x.png' alt='elsewhere'><script>undefined_name()</script></main></html>"
    )
    context.route("https://example.org/**", lambda route: route.abort())
    with browser.served(tmp_path) as address:
        found = browser.visit(context, address, "bad.html")
    assert found.outside == ["https://example.org/x.png"] and any("none.png" in url for url in found.missing)
    assert any("undefined_name" in text for text in found.errors)
    assert found.seen["left"] == ["\\(x\\)"] and [i["width"] for i in found.seen["images"]] == [0, 0]
    assert set(found.too_wide) == {"phone", "tablet"}
    assert {text.split(": ")[1] for text in found.violations} >= {"image-alt", "color-contrast"}


def test_the_first_address_leads_to_the_cover_with_its_picture_in_the_first_window(page, base):
    page.goto(base)
    page.wait_for_url("**/book/intro.html")
    box = page.locator("article img").first.bounding_box()
    assert box["y"] + box["height"] / 2 < 900


@pytest.fixture
def player(page, base):
    browser.goto(page, f"{base}notebooks/toy_model.html")
    return page.locator("#bnmem-player")


def test_the_player_steps_by_mouse(player):
    step, line = player.locator("output"), player.locator(".cut").first
    assert step.inner_text() == "step 0"
    player.get_by_role("button", name="Next").click()
    assert step.inner_text() == "step 1"
    before = line.get_attribute("x1"), line.get_attribute("y1")
    box = player.locator("input").bounding_box()
    player.page.mouse.click(box["x"] + box["width"] - 4, box["y"] + box["height"] / 2)
    assert int(step.inner_text().split()[1]) > 1
    assert (line.get_attribute("x1"), line.get_attribute("y1")) != before
    for _ in range(3):
        player.get_by_role("button", name="Back").click()
    player.get_by_role("button", name="Play").click()
    player.get_by_role("button", name="Pause").click()
    assert player.get_by_role("button", name="Play").is_visible()


def test_the_player_steps_by_keyboard(player):
    step, press = step_of(player), player.page.keyboard.press
    player.focus()
    press("ArrowRight")
    assert step() == 1
    press("End")
    last = step()
    press("ArrowLeft")
    assert 1 < step() < last
    press("Home")
    assert step() == 0
    press("Space")
    player.page.wait_for_function("document.querySelector('#bnmem-player output').textContent !== 'step 0'")
    press("Space")
    stopped = step()
    player.page.wait_for_timeout(600)
    assert step() == stopped > 0


def step_of(player):
    return lambda: int(player.locator("output").inner_text().split()[1])


def test_search_finds_a_word_from_the_keyboard(page, base):
    page.goto(f"{base}book/intro.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("papermill")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=papermill*")
    page.locator("#search-results a[href*='book/howto_papermill']").first.click()
    page.wait_for_url("**/book/howto_papermill.html*")


def test_next_leads_on_and_previous_back(page, base):
    page.goto(f"{base}book/intro.html")
    page.locator("a.right-next").click()
    page.wait_for_url(f"**/{PAGES[1]}")
    page.locator("a.left-prev").click()
    page.wait_for_url("**/book/intro.html")


def test_the_theme_can_be_switched_and_is_kept(page, base):
    page.goto(f"{base}book/intro.html")
    shown = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    first = shown()
    button = page.locator(".theme-switch-button:visible").first
    for _ in range(3):
        button.click()
        if shown() != first:
            break
    second = shown()
    page.goto(f"{base}book/theory.html")
    assert shown() == second != first
    page.evaluate("localStorage.clear()")


def test_folded_code_opens(page, base):
    page.goto(f"{base}notebooks/forced_memorization.html")
    folded = page.locator("details.hide").first
    assert folded.get_attribute("open") is None
    folded.locator("summary").click()
    assert "REPOSITORY" in folded.inner_text()
