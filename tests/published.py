"""The project as a fork publishes it: a stamped copy of the working tree, committed on the branch that Colab opens."""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .conftest import ROOT
from .test_book import tool

ADDRESS, REF = "Some-One/book.mem", "published"
GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")


def git(folder, *arguments):
    """What git prints; raises CalledProcessError."""
    done = subprocess.run([*GIT, "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def files():
    """The files of the working tree that git knows or would add, as paths relative to its root."""
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@functools.cache
def repository():
    """A repository whose branch REF holds the stamped tree; made once a session, removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="bnmem-published-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    tool("stamp").stamp(ADDRESS, REF, folder)
    git(folder, "init", "--quiet", "--initial-branch", REF)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", "stamped")
    return folder


@functools.cache
def book():
    """The folder of HTML pages built from that repository."""
    folder = Path(tempfile.mkdtemp(prefix="bnmem-book-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return tool("build_book").build(folder, repository()).parent


def environment():
    """Variables with which `git clone https://github.com/ADDRESS` fetches `repository()`; nothing else is changed."""
    rule = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.file://{repository()}.insteadOf"}
    return os.environ | rule | {"GIT_CONFIG_VALUE_0": f"https://github.com/{ADDRESS}"}
