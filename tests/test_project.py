"""What runs outside of the tests agrees with the project: workflows, hooks, forms, metadata."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

import proxlin

ROOT = pathlib.Path(__file__).parent.parent
GITHUB = ROOT / ".github"
REPOSITORY = "https://github.com/proxlin/proxlin"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((GITHUB / "workflows").glob("*.yml"))
}
JOBS = {
    f"{workflow}/{name}": job
    for workflow, content in WORKFLOWS.items()
    for name, job in content["jobs"].items()
}
FORMS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml")
}
CONFIG = FORMS.pop("config")


def steps(job):
    return job.get("steps", [])


def versions(requirement):
    """The versions that a requirement names: ``jax>=0.9.1`` -> ``jax``, ``0.9.1``."""
    return re.fullmatch(r"([\w-]+)[>=]=([\d.]+)", requirement).groups()


def minor(version):
    """Python 3.11 is newer than Python 3.9."""
    return tuple(map(int, version.split(".")))


# ---- workflows ----------------------------------------------------------------------------------


def test_workflows():
    assert set(WORKFLOWS) == {"checks", "weekly", "release"}
    # YAML 1.1 reads the key `on` as true.
    triggers = {name: set(workflow[True]) for name, workflow in WORKFLOWS.items()}
    assert triggers["checks"] == {"push", "pull_request", "workflow_call"}
    assert triggers["weekly"] == {"schedule", "workflow_dispatch"}
    assert WORKFLOWS["release"][True] == {"push": {"tags": ["v*"]}}


def test_workflows_may_only_read():
    for workflow in WORKFLOWS.values():
        assert workflow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    assert more == {"release/publish": {"id-token": "write"}}
    checkouts = [
        step for job in JOBS.values() for step in steps(job) if "checkout" in step.get("uses", "")
    ]
    assert checkouts and all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_a_called_workflow_does_not_wait_for_its_caller():
    """Workflows of the same group would, so that a release would cancel its own checks."""
    groups = [workflow["concurrency"]["group"] for workflow in WORKFLOWS.values()]
    assert len({group.partition("$")[0] for group in groups}) == len(groups)


@pytest.mark.parametrize("name", JOBS)
def test_job_ends_and_uses_actions_by_major_version(name):
    job = JOBS[name]
    if "uses" in job:
        assert (ROOT / job["uses"]).is_file()
        return
    assert job["timeout-minutes"] < 360
    for step in steps(job):
        assert ("run" in step) != ("uses" in step)
        assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", step.get("uses", "any/action@v1"))


def made(job):
    """The targets that a job makes."""
    runs = "\n".join(step.get("run", "") for step in steps(job))
    return re.findall(r"^\s*make(?: -\S+)* ([\w-]+)", runs, re.MULTILINE)


def test_workflows_make_targets_of_the_makefile():
    targets = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())
    assert {target for job in JOBS.values() for target in made(job)} <= targets
    assert {name: made(job) for name, job in JOBS.items() if made(job)} == {
        "checks/lint": ["lint"],
        "checks/test": ["venv", "test"],
        "checks/docs": ["docs"],
        "weekly/jax": ["venv", "test"],
        "weekly/slow": ["test-slow"],
        "weekly/rivals": ["test-rivals"],
    }
    # The tests leave out only what another job does.
    runs = [step["run"] for job in JOBS.values() for step in steps(job) if "run" in step]
    assert {option for run in runs for option in re.findall(r"^make (-\S+)", run)} == {
        "--assume-old=lint"
    }


def test_oldest_and_newest_python_and_jax_are_tested():
    oldest, newest = JOBS["checks/test"]["strategy"]["matrix"]["include"]
    prefix = "Programming Language :: Python :: "
    classified = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    classified = sorted(filter(lambda version: "." in version, classified), key=minor)
    assert f">={oldest['python']}" == PROJECT["requires-python"]
    assert (oldest["python"], newest["python"]) == (classified[0], classified[-1])
    assert JOBS["checks/test"]["env"] == {"PIP_CONSTRAINT": "${{ matrix.constraint }}"}
    assert newest["constraint"] == ""
    lines = (ROOT / oldest["constraint"]).read_text(encoding="utf-8").splitlines()
    pinned = dict(versions(line) for line in lines if not line.startswith("#"))
    needed = dict(versions(requirement) for requirement in PROJECT["dependencies"])
    assert pinned == {"jax": needed["jax"], "jaxlib": needed["jax"]}


def test_python_of_every_job():
    """Types are checked with the Python that mypy is told; the rest takes one that is tested."""
    pythons = {
        name: step["with"]["python-version"]
        for name, job in JOBS.items()
        for step in steps(job)
        if "setup-python" in step.get("uses", "")
    }
    assert pythons.pop("checks/test") == "${{ matrix.python }}"
    assert pythons["checks/lint"] == PYPROJECT["tool"]["mypy"]["python_version"]
    tested = {each["python"] for each in JOBS["checks/test"]["strategy"]["matrix"]["include"]}
    assert set(pythons.values()) == tested
    target = PYPROJECT["tool"]["ruff"]["target-version"]
    assert f"py{PROJECT['requires-python'].removeprefix('>=').replace('.', '')}" == target


def test_release_publishes_what_was_checked():
    publish = JOBS["release/publish"]
    assert publish["needs"] == ["checks", "build"]
    assert publish["environment"] == "pypi"
    download, upload = (step["uses"].partition("@")[0] for step in steps(publish))
    assert (download, upload) == ("actions/download-artifact", "pypa/gh-action-pypi-publish")
    runs = [step["run"] for step in steps(JOBS["release/build"]) if "run" in step]
    assert runs[1:3] == ["python -m build", "python -m twine check --strict dist/*"]


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        (f"v{proxlin.__version__}", ""),
        (proxlin.__version__, "but the version is"),
        (f"v{proxlin.__version__}.1", "but the version is"),
    ],
)
def test_release_compares_the_tag_with_the_version(tag, message):
    (run,) = [step["run"] for step in steps(JOBS["release/build"]) if "name" in step]
    program = re.search(r"python -c '(.*)'", run, re.DOTALL)[1]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "GITHUB_REF_NAME": tag},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == bool(message), done.stderr
    assert message in done.stderr


# ---- hooks --------------------------------------------------------------------------------------


def test_hooks_are_those_of_lint():
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
    linted = set(re.findall(r"\$\(BIN\)/(ruff \w+|\w+)", recipe))
    assert linted == {"ruff check", "ruff format", "mypy", "codespell"}
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repo,) = config["repos"]
    hooked = {hook["name"]: hook["entry"] for hook in repo["hooks"]}
    assert set(hooked) == linted
    assert all(entry.startswith(f".venv/bin/{name}") for name, entry in hooked.items())
    # Types are checked as soon as a file changes that mypy reads.
    (types,) = [hook for hook in repo["hooks"] if hook["name"] == "mypy"]
    read = [pattern.partition("/")[0] for pattern in PYPROJECT["tool"]["mypy"]["files"]]
    assert all(re.search(types["files"], f"{folder}/any.py") for folder in read)
    # They come with the environment that `make lint` uses.
    installed = {re.split("[>=]", each)[0] for each in PROJECT["optional-dependencies"]["test"]}
    assert {name.split()[0] for name in linted} <= installed


def test_older_versions_are_not_linted():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    pages = [
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "compat").rglob("*.md")
    ]
    assert pages and all(re.search(config["exclude"], page) for page in pages)
    spelling = [sys.executable, "-m", "codespell_lib", *pages]
    done = subprocess.run(spelling, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# ---- forms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_form(name):
    form = FORMS[name]
    assert form["name"] and form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids)
    for field in form["body"]:
        assert field["type"] in {"textarea", "dropdown"}
        assert field["attributes"]["label"]
        assert isinstance(field["validations"]["required"], bool)


def test_bug_report_asks_for_a_program_a_status_and_versions():
    fields = {field["id"]: field["attributes"] for field in FORMS["bug"]["body"]}
    assert set(fields) == {"program", "result", "status", "versions"}
    *statuses, none = fields["status"]["options"]
    assert set(statuses) == {status.name for status in proxlin.Status}
    assert none not in proxlin.Status.__members__
    compile(fields["program"]["placeholder"], "placeholder", "exec")


def test_bug_report_has_a_command_that_prints_versions():
    fields = {field["id"]: field["attributes"] for field in FORMS["bug"]["body"]}
    program = re.search(r'`python -c "(.*)"`', fields["versions"]["description"])[1]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert f"proxlin {proxlin.__version__}" in done.stdout
    assert all(f"{name}:" in done.stdout for name in ("jax", "jaxlib", "python"))


# ---- metadata -----------------------------------------------------------------------------------


def test_urls():
    assert set(PROJECT["urls"]) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    links = [*PROJECT["urls"].values(), *(link["url"] for link in CONFIG["contact_links"])]
    for page in ("SECURITY.md", "CODE_OF_CONDUCT.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        links += re.findall(r"https://github\.com/[^)\s]+", text)
    assert all(link == REPOSITORY or link.startswith(f"{REPOSITORY}/") for link in links)
    files = [link.partition("/blob/main/")[2] for link in links if "/blob/" in link]
    assert files and all((ROOT / file).is_file() for file in files)


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    assert citation["version"] == proxlin.__version__
    assert citation["license"] == PROJECT["license"]
    assert PROJECT["license-files"] == ["LICENSE"]
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_source_distribution_has_what_the_tests_read():
    """Among it the workflows, and the pages of older versions."""
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/src", "/tests", "/docs", "/Makefile", "/*.md", "/CITATION.cff"} <= set(included)
    assert {"/.github", "/.pre-commit-config.yaml"} <= set(included)
    assert all(list(ROOT.glob(pattern.removeprefix("/"))) for pattern in included)
