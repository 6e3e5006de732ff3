"""The import rules of the house, read from the syntax trees: nothing is imported to check them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("physis_core", "physis_ros")
ROS_PLACES = ("physis_ros/nodes/", "physis_ros/conversions/")
ROS_FILES = ("physis_ros/interfaces.py", "physis_ros/params.py")
ROS_MODULES = (
    "rclpy",
    "std_msgs",
    "std_srvs",
    "sensor_msgs",
    "trajectory_msgs",
    "diagnostic_msgs",
    "geometry_msgs",
    "lifecycle_msgs",
    "rosgraph_msgs",
    "builtin_interfaces",
    "rcl_interfaces",
    "physis_ros.msg",
    "physis_ros.srv",
)
LAUNCH_MODULES = ("launch", "launch_ros", "ament_index_python", "launch_pytest")


def sources() -> dict[str, Path]:
    """Return every module of the two packages: dotted name -> file."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path
    return found


MODULES = sources()


def is_typing_only(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.dump(node.test)


def import_nodes(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield imports at any depth (a lazy import counts), but not those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and is_typing_only(node):
            for other in node.orelse:
                yield from import_nodes(other)
        else:
            yield from import_nodes(node)


def imported(name: str, path: Path) -> set[str]:
    """Return the dotted names that a module imports; `from a import b` counts as a and a.b."""
    names: set[str] = set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in import_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
            continue
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            parts = parts[: len(parts) - node.level + 1]
            base = ".".join([*parts, *filter(None, [node.module])])
        names.add(base)
        names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


IMPORTS = {name: imported(name, path) for name, path in MODULES.items()}


def matches(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def reach(start: str) -> dict[str, list[str]]:
    """Return all modules that importing `start` brings in, with the way there.

    Importing a.b.c runs a and a.b as well.
    """
    ways = {start: [start]}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        nexts = set(IMPORTS.get(name, set()))
        for target in [name, *nexts]:
            while "." in target:
                target = target.rpartition(".")[0]
                nexts.add(target)
        for target in sorted(nexts - ways.keys()):
            ways[target] = [*ways[name], target]
            if target in MODULES:
                waiting.append(target)
    return ways


def test_the_sources_are_found() -> None:
    assert "physis_core.types" in MODULES
    assert "physis_ros.interfaces" in MODULES


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("physis_core")])
def test_the_core_knows_no_ros(name: str) -> None:
    wrong = [found for found in IMPORTS[name] if matches(found, (*ROS_MODULES, "physis_ros"))]
    assert not wrong, f"{MODULES[name]} imports {wrong}"


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("physis_ros")])
def test_ros_stays_in_its_places(name: str) -> None:
    place = MODULES[name].relative_to(ROOT).as_posix()
    if place in ROS_FILES or place.startswith(ROS_PLACES):
        return
    wrong = [found for found in IMPORTS[name] if matches(found, ROS_MODULES)]
    assert not wrong, f"{place} imports {wrong}"


@pytest.mark.parametrize("name", list(MODULES))
def test_launch_is_imported_by_launch_files_alone(name: str) -> None:
    wrong = [found for found in IMPORTS[name] if matches(found, LAUNCH_MODULES)]
    assert not wrong, f"{MODULES[name]} imports {wrong}"


@pytest.mark.parametrize(
    "name",
    [name for name in MODULES if name.endswith((".buffer_node", ".safety_node"))],
)
def test_buffer_and_safety_reach_no_torch(name: str) -> None:
    for target, way in reach(name).items():
        assert not matches(target, ("torch",)), " -> ".join(way)


def test_reach_follows_packages_and_relative_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("from .inner import thing\nimport os\n")
    inner = tmp_path / "__init__.py"
    inner.write_text("def later():\n    import torch\n")
    assert imported("top.a", tmp_path / "a.py") == {"top.inner", "top.inner.thing", "os"}
    assert imported("top", inner) == {"torch"}
    monkeypatch.setitem(IMPORTS, "physis_ros.fake", {"physis_core.fake.deep"})
    monkeypatch.setitem(IMPORTS, "physis_core.fake", {"torch"})
    monkeypatch.setitem(MODULES, "physis_core.fake", inner)
    assert "torch" in reach("physis_ros.fake")
