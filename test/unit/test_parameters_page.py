import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_tells_what_the_nodes_declare() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "parameters_page.py"))
    written = (ROOT / "docs" / "reference" / "parameters.md").read_text(encoding="utf-8")
    assert written == made["page"](), "run scripts/parameters_page.py"


def test_every_node_is_on_the_page() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "parameters_page.py"))
    nodes = {path.stem for path in ROOT.glob("physis_*/**/*_node.py")}
    assert set(made["NODE_PARAMETERS"]) == nodes
