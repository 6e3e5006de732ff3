import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "docs.py"))


@pytest.fixture(scope="module")
def site() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "docs_site.py"))


def test_every_page_names_only_what_exists(check: dict[str, Any]) -> None:
    assert [fault for path in check["markdown_files"]() for fault in check["faults"](path)] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("see `config/robots/nobody.yaml`", "does not exist"),
        ("    python -m physis_lab.nothing.here --help", "does not exist"),
        ("word " * 30, "columns"),
        ("see `config/robots/*.yaml` and `physis_ros/ActionChunk`", ""),
        ("| " + "wide table " * 20 + "|", ""),
    ],
)
def test_what_the_check_finds(
    check: dict[str, Any], monkeypatch: pytest.MonkeyPatch, text: str, fault: str
) -> None:
    page = ROOT / "docs" / "page-of-a-test.md"
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: text)
    found = list(check["faults"](page))
    assert (fault in found[0]) if fault else found == []


@pytest.mark.parametrize(
    ("source", "page", "link", "wanted"),
    [
        ("README.md", "index.md", "[a](docs/how-to/own-robot.md#x)", "[a](how-to/own-robot.md#x)"),
        ("docs/studies/a.md", "studies/a.md", "![p](../images/p.png)", "![p](../images/p.png)"),
        (
            "docs/studies/a.md",
            "studies/a.md",
            "[c](../../checkpoints/README.md)",
            "[c](../reference/checkpoints.md)",
        ),
        ("benchmarks/README.md", "reference/benchmarks.md", "[e](../Makefile)", "e"),
        ("README.md", "index.md", "[gone](docs-gone.md)", "[gone](docs-gone.md)"),
        ("README.md", "index.md", "[w](https://example.org/a.md)", "[w](https://example.org/a.md)"),
    ],
)
def test_links_on_the_site(
    site: dict[str, Any], source: str, page: str, link: str, wanted: str
) -> None:
    def convert(match: re.Match[str]) -> str:
        return str(site["site_link"](match, source=source, page=page))

    assert site["LINK"].sub(convert, link) == wanted
