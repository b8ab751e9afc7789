"""The pages of the documentation: all are in its navigation, name every rule and method, and agree with the code."""

import contextlib
import inspect
import json
import re
import runpy
import textwrap
from pathlib import Path

import cases
import pytest

import fedjax_drag as fd
from fedjax_drag import aggregators, algorithms, attacks, interop
from fedjax_drag.experiment.config.components import KINDS
from fedjax_drag.experiment.run import results
from fedjax_drag.simulation.settings import Arguments

DOCS = Path(__file__).parents[1] / "docs"
FAST = ("../README.md", "first_run.md", "first_rule.md", "attacks.md", "from_fedjax.md", "api/index.md")
SLOW = ("own_parts.md", "models.md")
NOT_RUN = {
    "index.md": "that of README.md",
    "install.md": "before JAX starts: tests/test_cores.py",
    "running.md": "reads what the page's commands leave: tests/test_first_page.py",
    "arena.md": "plays for minutes, as a notebook does",
    "plan.md": "needs the compiler: tests/accelerators",
    "from_flower.md": "needs Flower: tests/interop/test_flower.py",
}
"""Pages whose blocks of Python do not run here, with the reason."""

PAPERS = {"Zhu et al.": "Zhu et al., DRAG", "Xiao et al.": "Xiao et al., BR-DRAG", "Liu et al.": "Liu et al., TACO"}


def test_the_picture_is_the_one_that_the_script_draws():
    """Written anew by ``python docs/mkdocs/draw_architecture.py``."""
    drawn = runpy.run_path(str(DOCS / "mkdocs" / "draw_architecture.py"))["draw"]()
    assert (DOCS / "architecture.svg").read_text() == drawn


def test_the_map_names_files_and_folders_that_exist():
    folders = (DOCS / "architecture.md").read_text().partition("## Folders")[2].partition("Outside the package")[0]
    rows = re.findall(r"^\| (`.+?) \|", folders, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(.+?)`", row)]
    assert len(named) > 20
    package = DOCS.parent / "fedjax_drag"
    assert [name for name in named if not (package / name).exists()] == []
    of_package = {file.parent.relative_to(package).name for file in package.glob("*/**/*.py")}
    assert [name for name in sorted(of_package) if f"{name}/" not in folders] == []


def test_the_page_of_the_results_folder_names_what_a_run_writes():
    page = (DOCS / "running.md").read_text()
    assert [name for name in results.WRITTEN if f"`{name}" not in page] == []


def test_the_pages_of_configuration_keys_are_made_from_the_code():
    """Written anew by ``python docs/mkdocs/configuration_page.py``."""
    made = runpy.run_path(str(DOCS / "mkdocs" / "configuration_page.py"))
    page, keys = made["page"](), made["keys_page"]()
    assert (DOCS / "configuration.md").read_text() == page
    assert (DOCS / "keys.md").read_text() == keys
    assert "| or null |" not in keys, "a key says what else than null is allowed"
    assert len(page.split()) < 1500
    cells = [cell for line in (page + keys).splitlines() if line.startswith("|") for cell in line.split("|")]
    assert max(len(cell.split()) for cell in cells) <= 40


def test_the_page_of_keys_names_the_arguments_that_a_simulation_has_too():
    table = (DOCS / "keys.md").read_text().partition("## Meanings")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.+?) \|$", table, re.MULTILINE)
    taken = inspect.signature(fd.simulate).parameters
    assert [key for key, in_python in rows if key in taken and in_python == "-"] == []


def test_all_groups_of_entry_points_are_named():
    page = (DOCS / "own_parts.md").read_text().partition("The groups are")[2]
    assert sorted(set(re.findall(r"`(\w+)`", page))) == sorted({kind.listed for kind in KINDS})


def test_every_page_is_in_the_navigation():
    navigation = (DOCS / "mkdocs" / "mkdocs.yml").read_text().partition("\nnav:")[2]
    listed = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", ["README.md", "RESULTS.md", "CONTRIBUTING.md"])
def test_links_of_pages_outside_the_site_lead_somewhere(page):
    """MkDocs checks those inside."""
    root = DOCS.parent
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (root / page).read_text())
    assert [target for target in targets if not (root / target).exists()] == []


MODULES = [getattr(fd, name) for name in fd.__all__ if inspect.ismodule(getattr(fd, name))]


@pytest.mark.parametrize("module", [*MODULES, fd.data.partition, interop], ids=lambda module: module.__name__)
def test_public_names_are_in_the_reference(module):
    """By themselves, or with their module; of a file and a function of one name mkdocstrings shows the file."""
    shown = re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in DOCS.glob("api/*.md")), re.MULTILINE)
    whole = module.__name__ in shown

    def is_shown(public):
        alone = any(own.startswith("fedjax_drag") and own.endswith(f".{public}") for own in shown)
        file = Path(module.__file__).parent / f"{public}.py"
        return alone or (whole and not file.exists())

    public = [one for one in getattr(module, "__all__", ()) if not inspect.ismodule(getattr(module, one))]
    assert [one for one in public if not is_shown(one)] == []


def test_all_groups_of_settings_are_in_the_reference():
    page = (DOCS / "api" / "simulation.md").read_text()
    groups = [f"{group.__module__}.{group.__name__}" for group in Arguments.__mro__[:-1]]
    assert [group for group in groups if f"::: {group}\n" not in page] == []


@pytest.mark.parametrize("module", [aggregators, algorithms], ids=lambda module: module.__name__.split(".")[-1])
@pytest.mark.parametrize(("page", "written"), [("formulas.md", r"\b{}\b"), ("index.md", "`{}")])
def test_every_rule_and_method_has_its_formula_and_is_in_the_overview(module, page, written):
    text = (DOCS / page).read_text()
    names = [name for name in module.__all__ if name != "from_aggregator"]
    assert [name for name in names if not re.search(written.format(name), text)] == []


def test_every_attack_is_in_the_overview():
    text = (DOCS / "index.md").read_text()
    assert [name for name in attacks.__all__ if f"`{name}`" not in text] == []


def test_the_page_of_privacy_names_the_rules_that_go_and_those_that_do_not():
    page = (DOCS / "privacy.md").read_text().partition("### Which rules")[2].partition("### The adaptive clip")[0]
    around_the_mean = page.partition("Under `local_dp`")[0]
    noisy, refused = {}, {}
    for case in cases.AGGREGATORS:
        rule, name = case.build(), case.builder.__name__
        with contextlib.suppress(ValueError):
            noisy[name] = fd.privacy.central_dp(rule, 1.0, 1.0)
        try:
            fd.algorithms.from_aggregator(rule, client=fd.privacy.local_dp(fd.clients.sgd(), 1.0, 1.0))
        except ValueError:
            refused[name] = "num_examples" not in rule.needs
    assert [name for name in noisy if f"`{name}`" not in around_the_mean] == []
    assert [name for name, by_itself in refused.items() if by_itself and f"`{name}`" not in page] == []


def test_the_attacks_that_need_labels_are_among_what_does_not_go_together():
    page = (DOCS / "choose.md").read_text().partition("## What does not go together")[2].partition("\n## ")[0]
    built = [case.build() for case in cases.ATTACKS]
    alone = {attack.name for attack in built if attack.needs_labels and not isinstance(attack, fd.types.WrappedAttack)}
    assert [name for name in sorted(alone) if f"`{name}`" not in page] == []


def test_the_index_of_results_agrees_with_the_recorded_claims():
    claims = json.loads((DOCS / "results" / "claims.json").read_text())
    page = (DOCS / "results" / "index.md").read_text()
    rows = re.findall(r"^\| \[(.+?)\]\(\S+\) \| (.+?) \| .* \| (.+?) \|$", page, re.MULTILINE)
    assert len(rows) > 20
    judged = {(claim["paper"], claim["place"], claim["verdict"]) for claim in claims}
    for claim in claims:
        said = re.match(r"an earlier version, without an interval: (does not hold|holds)", claim["ours"])
        judged |= {(claim["paper"], claim["place"], f"earlier: {said[1]}")} if said else set()
    assert {(PAPERS.get(paper, paper), place, verdict) for paper, place, verdict in rows} <= judged

    counted = (DOCS / "results" / "claims.md").read_text()
    shown = re.findall(
        r"^\| (?:\d+ with|of them after).* \| (\d*) \| (\d*) \| (\d*) \| (\d*) \| (\d*) \|$", page, re.MULTILINE
    )
    listed = re.findall(r"^- With .*?: (.*?); after Holm's correction (.*?)\.$", counted, re.MULTILINE)
    words = ("holds", "does not hold", "level", "undecided", "not measured")
    found = [[re.search(rf"(?:^|, ){word} (\d+)", line) for word in words] for pair in listed for line in pair]
    assert shown == [tuple(match[1] if match else "0" for match in line) for line in found]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


WITH_BLOCKS = ["../README.md", *(page.relative_to(DOCS).as_posix() for page in sorted(DOCS.rglob("*.md")))]
WITH_BLOCKS = [page for page in WITH_BLOCKS if blocks(page)]


def test_the_first_example_is_that_of_the_readme():
    assert set(NOT_RUN) <= set(WITH_BLOCKS)
    assert blocks("index.md") == blocks("../README.md")


def marks(page):
    return [] if page in FAST else pytest.mark.slow if page in SLOW else pytest.mark.thorough


@pytest.mark.parametrize("page", [pytest.param(page, marks=marks(page)) for page in WITH_BLOCKS if page not in NOT_RUN])
def test_the_blocks_of_a_page_run(page):
    namespace = {"__name__": Path(page).stem}
    for block in blocks(page):
        try:
            exec(compile(block, page, "exec"), namespace)
        except FileNotFoundError as missing:
            if not str(missing).startswith("shakespeare: not found in"):
                raise
            pytest.skip(str(missing))
    assert all(cell.status == "done" for cell in getattr(namespace.get("found"), "cells", ()))


@pytest.mark.thorough
def test_the_forms_of_a_rule_in_contributing_keep_the_contract():
    """As a reader outside the package writes them, with the helpers that are public."""
    page = (DOCS.parent / "CONTRIBUTING.md").read_text()
    forms = re.findall(r"^ +```python\n(.*?)^ +```$", page, re.MULTILINE | re.DOTALL)
    assert len(forms) == 3
    for form in forms:
        namespace = {**vars(aggregators), "tree": fd.tree, "__name__": "contributing"}
        exec(textwrap.dedent(form), namespace)
        fd.testing.check_aggregator(namespace["inverse_norm"]())
