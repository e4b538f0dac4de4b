"""What runs on GitHub, and what the documents tell people to run: everything that they call exists."""

import json
import re
import subprocess
import sys

import pytest
import yaml

from .conftest import ROOT
from .test_book import tool

WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([a-z]+):", MAKEFILE, re.M)
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.py"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "book").glob("*.md"))]
each = pytest.mark.parametrize("name", sorted(WORKFLOWS))
documents = pytest.mark.parametrize("path", DOCUMENTS, ids=[p.name for p in DOCUMENTS])


class Loader(yaml.SafeLoader):
    """YAML as GitHub reads it: `on` is a word, not true; and no key twice."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if tag != "tag:yaml.org,2002:bool" or first not in "oO"]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(name):
    return yaml.load(WORKFLOWS[name].read_text(), Loader)


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def called(text):
    """(make targets, scripts) that shell text runs."""
    targets = re.findall(r"(?:^|[\s;&])make ([a-z][a-z ]*?)(?= [A-Z]|\s*(?:#|$|\n))", text, re.M)
    scripts = re.findall(r"python3?(?:\.11)? ((?:tools|tests|benchmarks)/\S+\.py)", text)
    return [word for line in targets for word in line.split()], scripts


def test_there_are_the_five():
    assert set(WORKFLOWS) == {"ci", "book", "nightly", "linkcheck", "rerun"}


@each
def test_permissions_are_set_and_only_three_jobs_may_write(name):
    workflow = read(name)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    writing = {
        (name, job, scope)
        for job, body in workflow["jobs"].items()
        for scope, right in body.get("permissions", {}).items()
        if right == "write"
    }
    assert writing <= {
        ("book", "publish", "contents"),
        ("book", "deploy", "pages"),
        ("book", "deploy", "id-token"),
        ("nightly", "report", "issues"),
    }


@each
def test_actions_are_pinned_by_commit_and_say_which_version(name):
    lines = re.findall(r"uses: (.*)", WORKFLOWS[name].read_text())
    assert lines or name == "none"
    for line in lines:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_one_action_has_one_pin():
    pins = {
        tuple(u.split(" ")[0].split("@")) for p in WORKFLOWS.values() for u in re.findall(r"uses: (.*)", p.read_text())
    }
    assert len({action for action, _ in pins}) == len(pins)


@each
def test_nothing_is_put_into_shell_text(name):
    """Inputs and contexts reach a script through variables; text put into a script would run."""
    for step in steps(read(name)):
        assert "${{" not in step.get("run", ""), step
        for variable in re.findall(r"(?<![\"\w])\$\{?([A-Z_]+)", step.get("run", "")):
            assert variable in step.get("env", {}), (variable, "unquoted, or not set")


@each
def test_every_job_ends_and_credentials_stay_out_of_the_checkout(name):
    for job, body in read(name)["jobs"].items():
        assert 0 < body["timeout-minutes"] <= 350 and body["runs-on"] == "ubuntu-24.04"
        for step in body["steps"]:
            if "actions/checkout" in step.get("uses", "") and (name, job) != ("book", "publish"):
                assert step["with"]["persist-credentials"] is False
            assert "cache" not in step.get("with", {}) and "actions/cache" not in step.get("uses", "")


@each
def test_what_a_workflow_calls_exists(name):
    for step in steps(read(name)):
        targets, scripts = called(step.get("run", ""))
        assert set(targets) <= set(TARGETS) and all((ROOT / script).is_file() for script in scripts)
        for path in re.findall(r"\.venv/bin/([a-z]+)", step.get("run", "")):
            assert path in ("python", "papermill")
    assert any(called(step.get("run", "")) != ([], []) for step in steps(read(name)))


def test_the_flags_that_the_makefile_passes_exist():
    for script, flags in re.findall(r"python (tools/\w+\.py)((?: --[a-z]+(?: smoke)?)*)", MAKEFILE):
        text = (ROOT / script).read_text()
        for flag in re.findall(r"--[a-z]+", flags):
            assert f'"{flag}"' in text, (script, flag)


def test_the_form_offers_every_notebook_and_profiles_that_exist():
    from bnmem.settings import PROFILES

    inputs = read("rerun")["on"]["workflow_dispatch"]["inputs"]
    assert sorted(inputs["notebook"]["options"]) == NOTEBOOKS
    assert set(inputs["profile"]["options"]) <= set(PROFILES)
    for name in NOTEBOOKS:
        assert "profile" in tool("book_extension").parameter_names((ROOT / f"notebooks/{name}.py").read_text())
    assert yaml.safe_load(inputs["parameters"]["default"]) == {}
    used = next(step for step in steps(read("rerun")) if "papermill" in step.get("run", ""))
    assert set(re.findall(r"inputs\.(\w+)", json.dumps(used["env"]))) == set(inputs)


def test_the_branch_that_is_published_is_the_one_that_is_stamped():
    text = "\n".join(step.get("run", "") for step in steps(read("book")))
    stamped = set(re.findall(r"stamp\.py \S+ (\w+)", text))
    pushed = set(re.findall(r"HEAD:refs/heads/(\w+)", text))
    assert stamped == pushed and len(stamped) == 1
    assert read("book")["on"]["push"]["branches"] == ["main"]  # pushing the other branch starts nothing


def test_the_weekly_run_is_the_one_that_the_schedule_names():
    crons = [row["cron"] for row in read("nightly")["on"]["schedule"]]
    assert re.search(r"schedule == '([^']+)'", read("nightly")["jobs"]["laptop"]["if"])[1] in crons


def test_laptop_records_are_all_recomputed(committed):
    from bnmem import exp_forced_memorization as exp

    keys = tool("verify_laptop").keys()
    assert {r.key for r in exp.run(exp.ForcedMemorization.of("laptop"), only_stored=True).records} <= set(keys)
    assert len(set(keys)) == len(keys)


def test_the_link_check_tells_dead_from_unsure(tmp_path, monkeypatch, capsys):
    check = tool("check_links")
    (tmp_path / "a.html").write_text(
        '<a href="https://x.org/#top">x</a><a href="b.html">b</a><a href="http://y.org">y</a>'
    )
    assert check.links(tmp_path) == {"https://x.org/": ["a.html"], "http://y.org": ["a.html"]}

    def answer(request, timeout):
        raise check.urllib.error.HTTPError(request.full_url, 404 if "x.org" in request.full_url else 503, "", {}, None)

    monkeypatch.setattr(check.urllib.request, "urlopen", answer)
    assert check.check(tmp_path) == 1
    said = capsys.readouterr().out
    assert "https://x.org/: dead: 404" in said and "http://y.org: unsure: 503" in said


@documents
def test_what_a_document_tells_people_to_run_exists(path):
    blocks = re.findall(r"```bash\n(.*?)```", path.read_text(), re.S)
    inline = re.findall(r"`((?:make|python3?|\.venv/bin/\w+) [^`]+)`", path.read_text())
    for text in [*blocks, *inline]:
        text = text.replace("\\\n", " ")
        targets, scripts = called(text)
        assert set(targets) <= set(TARGETS), path.name
        assert all((ROOT / script).is_file() for script in scripts if "NAME" not in script), path.name
        for name, rest in re.findall(r"papermill notebooks/(\w+)\.ipynb \S+(.*)", text):
            known = tool("book_extension").parameter_names((ROOT / f"notebooks/{name}.py").read_text())
            given = re.findall(r"-p (\w+)", rest) + re.findall(r'-y "(\w+):', rest)
            assert set(given) <= {*known, "nrom"}, (path.name, given)  # nrom: shown as a mistake


@pytest.mark.parametrize("name", ["howto_sharp_edges"])
def test_the_examples_of_a_page_print_what_it_says(name):
    text = (ROOT / "book" / f"{name}.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))
    said = "".join(re.findall(r"```text\n(.*?)```", text, re.S))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == said
