"""A real browser on the built book: what a page does when a reader opens it."""

import contextlib
import functools
import shutil
import tempfile
import threading
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import axe_playwright_python
from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
WIDTHS = {"phone": 360, "tablet": 768, "desktop": 1440}
# All rules once, colours on both grounds (formulas are drawn in the text's own colour).
THEMES = {"light": ([], {}), "dark": ([["mjx-container"]], {"runOnly": ["color-contrast"]})}

AUDIT = """([skipped, rules]) =>
  axe.run({exclude: skipped}, {resultTypes: ['violations'], preload: false, ...rules})"""
TYPESET = "async () => { if (window.MathJax?.startup) await MathJax.startup.promise }"
LOOK = """() => ({
  formulas: document.querySelectorAll('.math').length,
  typeset: document.querySelectorAll('.math mjx-container').length,
  failed: [...document.querySelectorAll('mjx-merror')].map(e => e.textContent),
  left: [...document.querySelectorAll('.math')].filter(e => !e.querySelector('mjx-container')).map(e => e.textContent),
  images: [...document.images].map(i => ({src: i.src, alt: i.alt, width: i.complete ? i.naturalWidth : 0})),
  bytes: [...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')]
    .filter(e => !e.name.includes('/mathjax/')).reduce((sum, e) => sum + e.encodedBodySize, 0),
})"""
THEME = "theme => Object.assign(document.documentElement.dataset, {theme: theme, mode: theme})"


def find():
    """The browser on this machine, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Visit:
    """What was seen at one page, read on a phone first."""

    name: str
    errors: list[str] = field(default_factory=list)  # console errors, uncaught errors
    outside: list[str] = field(default_factory=list)  # requests to another host
    missing: list[str] = field(default_factory=list)  # answers of 400 and more
    too_wide: dict[str, int] = field(default_factory=dict)  # width of the page where it exceeds the window's
    violations: list[str] = field(default_factory=list)  # of accessibility, serious and critical
    seen: dict = field(default_factory=dict)  # LOOK


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder):
    """The address at which a folder is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def opened(executable):
    """A browser with an empty profile, a phone's width."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, sync_playwright() as play:
        options = {"executable_path": executable, "headless": True, "args": [*QUIET, "--disable-sync"]}
        context = play.chromium.launch_persistent_context(
            profile, **options, viewport={"width": WIDTHS["phone"], "height": 800}, color_scheme="light"
        )
        try:
            yield context
        finally:
            context.close()


def goto(page, address):
    """Open a page and wait until its formulas are set."""
    page.goto(address)
    page.evaluate(TYPESET)


def visit(context, base, name):
    """Open one page, look at it in all widths and both themes."""
    found, page = Visit(name), context.new_page()
    page.on("console", lambda m: found.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: found.errors.append(str(e)))
    page.on("request", lambda r: None if r.url.startswith((base, "data:", "blob:")) else found.outside.append(r.url))
    page.on("response", lambda r: found.missing.append(r.url) if r.status >= 400 else None)
    goto(page, base + name)
    found.seen = page.evaluate(LOOK)
    for device, width in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": 800})
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            found.too_wide[device] = wide
    page.set_viewport_size({"width": WIDTHS["phone"], "height": 800})
    page.evaluate(AXE.read_text(encoding="utf-8"))
    for theme, what in THEMES.items():
        page.evaluate(THEME, theme)
        for rule in page.evaluate(AUDIT, what)["violations"]:
            if rule["impact"] in ("serious", "critical"):
                found.violations += [f"{theme}: {rule['id']}: {node['html'][:200]}" for node in rule["nodes"]]
    page.close()
    return found
