"""MkDocs hooks: pages from outside docs/, and links that work both in the repository and the site.

README.md is the site's first page; `OUTSIDE` names the others. A link is written as a path in the
repository. Here it becomes the page's path on the site. A link to a file that the site does not
have (a source file, a folder) becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "reference/benchmarks.md",
    "checkpoints/README.md": "reference/checkpoints.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    # Only in the site's environment: the tests read this file without it.
    from mkdocs.structure.files import File

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    here = page.file.src_uri
    source = {page: path for path, page in OUTSIDE.items()}.get(here, f"docs/{here}")
    return LINK.sub(lambda link: site_link(link, source=source, page=here), markdown)


def site_link(link: re.Match[str], *, source: str, page: str) -> str:
    """The link of the file `source` as the site's page `page` needs it."""
    image, text, target = link.groups()
    path, _, anchor = target.partition("#")
    if not path or "://" in path:
        return link.group(0)
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if path in OUTSIDE:
        path = OUTSIDE[path]
    elif path.startswith("docs/"):
        path = path.removeprefix("docs/")
    elif (ROOT / path).exists():
        return text
    else:
        return link.group(0)
    relative = posixpath.relpath(path, posixpath.dirname(page) or ".")
    return f"{image}[{text}]({relative}{'#' + anchor if anchor else ''})"
