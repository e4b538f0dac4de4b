"""Stop early, with a clear message, where the project cannot be installed. Runs on any Python 3."""

import shutil
import sys

NEEDED, GIGABYTES = (3, 11), 10


def problem(version, free_bytes):
    """The one-line reason why the environment cannot be made, or None."""
    if version < NEEDED:
        return "Python %d.%d or newer is needed and this is %d.%d; name another one: make PYTHON=python3.11" % (
            NEEDED + tuple(version[:2])
        )
    if free_bytes < GIGABYTES * 1e9:
        return "the environment takes about 6 GB and %.1f GB are free here; free some until there are %d GB" % (
            free_bytes / 1e9,
            GIGABYTES,
        )
    return None


if __name__ == "__main__":
    reason = problem(sys.version_info, shutil.disk_usage(".").free)
    if reason:
        sys.exit("bnmem: " + reason)
    if sys.version_info[:2] != NEEDED:
        print("bnmem: note: the pinned versions are tested on Python %d.%d" % NEEDED)
