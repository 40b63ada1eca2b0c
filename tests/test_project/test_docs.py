"""The documents say what the code does: commands, options, make targets, exit codes, rules."""

import re
import shlex
import tomllib
from pathlib import Path

import click
from tests.each import each

from whystuck.cli import COMMANDS, whystuck
from whystuck.diagnose.rules import RULES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = "\n".join(
    [README, *(path.read_text() for path in sorted((ROOT / "docs").glob("**/*.md")))]
)
HEADINGS = ["## What it means", "## How it is found", "## False alarms", "## What to do"]


def shell_lines(text: str) -> list[list[str]]:
    """Words of each command in the code blocks, continuation lines joined, comments cut."""
    blocks = re.findall(r"(?ms)^```(?:console|sh|bash)\n(.*?)^```", text)
    lines = "\n".join(block.replace("\\\n", " ") for block in blocks).splitlines()
    commands = [line.strip().removeprefix("$ ") for line in lines]
    ours = [line for line in commands if line.startswith(("whystuck ", "make "))]
    return [shlex.split(line, comments=True) for line in ours]


VISIBLE = {entry.name: entry for entry in COMMANDS if not entry.hidden}
DOCUMENTED = shell_lines(DOCUMENTS)


@each("name", sorted(VISIBLE))
def test_command_is_documented(name: str) -> None:
    assert ["whystuck", name] in [words[:2] for words in DOCUMENTED]


@each("name", sorted(VISIBLE))
def test_command_has_help(name: str) -> None:
    assert VISIBLE[name].load().get_short_help_str()


def options_of(command: click.Command) -> set[str]:
    names = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return names | {"-h", "--help"}


@each("words", DOCUMENTED, " ".join)
def test_documented_command_exists(words: list[str]) -> None:
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert re.search(rf"^{re.escape(words[1])}:", makefile, flags=re.MULTILINE)
        return
    if words[1].startswith("-"):
        assert words[1] in options_of(whystuck)
        return
    ours = words[2 : words.index("--")] if "--" in words else words[2:]
    used = {word.partition("=")[0] for word in ours if word.startswith("-")}
    command = VISIBLE[words[1]].load()
    if isinstance(command, click.Group) and ours:
        inner = command.get_command(click.Context(command), ours[0])
        assert inner, f"`{ours[0]}` is no command of `{words[1]}`"
        command = inner
    assert used <= options_of(command)


@each("rule", RULES, lambda rule: str(rule.code))
def test_rule_has_a_page(rule: type) -> None:
    page = rule.__doc__ or ""

    found = [line.strip() for line in page.splitlines() if line.strip().startswith("## ")]
    assert found == HEADINGS


def test_rule_codes_and_names_are_unique() -> None:
    assert len({rule.code for rule in RULES}) == len(RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


@each("code", sorted(set(re.findall(r"\b[HCSP]\d{3}\b", DOCUMENTS))))
def test_documented_rule_exists(code: str) -> None:
    assert code in {rule.code for rule in RULES}


def test_architecture_names_every_folder() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "src" / "whystuck"
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    modules = {path.name for path in package.glob("*.py") if not path.name.startswith("__")}

    assert {name for name in folders | modules if f"| `{name}` |" not in table} == set()


def test_architecture_names_paths_that_exist() -> None:
    """A path is one of the repository, or the end of one in the package; `my_...` is to be made."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w./*]+(?:/|\.py|\.c))`", page))
    package = ROOT / "src" / "whystuck"

    assert len(named) > 100
    lost = [
        name
        for name in named
        if not re.search(r"\bmy_|_my_|^/proc", name)
        and not any(ROOT.glob(name.rstrip("/")))
        and not any(package.glob(f"**/{name.rstrip('/')}"))
    ]
    assert lost == []


def test_architecture_names_code_that_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`(?:\w+\.)?(_?[A-Z]\w+|_\w+)`", page)) - {"PYTHONPATH"}
    source = "\n".join(path.read_text() for path in (ROOT / "src").glob("**/*.py"))
    tests = (ROOT / "tests" / "diagnose" / "scenes.py").read_text()

    assert {name for name in named if not re.search(rf"\b{name}\b", source + tests)} == set()


# Names of modules that say too little, and what took their place (docs/glossary.md).
RETIRED = {
    "pickle_molds": "entry_templates", "pickle_lanes": "vectorized_entries",
    "shelf": "shared_columns", "habits": "call_patterns", "lapses": "pattern_breaks",
    "ways": "divergence_kinds", "places": "agent_folder, trace_output, launcher_env, locations",
    "held": "abandoned_requests", "later": "poll_batcher", "together": "rank_sync",
    "adopted": "agent_discovery", "pace": "step_pace", "looks": "op_observers", "utils": "",
}  # fmt: skip


def test_no_module_has_a_retired_name() -> None:
    names = [
        path for folder in ("src", "tests", "bench") for path in (ROOT / folder).glob("**/*.py")
    ]
    assert [path for path in names if path.stem.removeprefix("test_") in RETIRED] == []


def test_documents_name_no_retired_module() -> None:
    """In code style only: most of these are ordinary words."""
    words = "|".join(RETIRED)
    documents = [*(ROOT / "docs").glob("**/*.md")]
    pattern = re.compile(rf"`(?:[\w./]+/)?(?:{words})(?:\.py)?`")

    found = [(path.name, pattern.findall(path.read_text())) for path in documents]
    assert [one for one in found if one[1]] == []


def test_glossary_is_in_order_and_has_what_took_the_place_of_retired_names() -> None:
    terms = re.findall(r"(?m)^(\S.*)\n  \S", (ROOT / "docs" / "glossary.md").read_text())

    assert terms == sorted(terms, key=str.lower)
    named = {name for names in RETIRED.values() for name in names.split(", ") if name}
    code = {path.stem for path in (ROOT / "src").glob("**/*.py")} | {"op_observers"}
    assert named - code == set()


def test_version_has_a_changelog_entry() -> None:
    source = (ROOT / "src" / "whystuck" / "__init__.py").read_text()
    version = re.search(r'__version__ = "(.+)"', source)
    assert version

    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()


def test_torch_is_not_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert not [name for name in project["dependencies"] if name.startswith("torch")]
