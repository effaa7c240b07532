"""MkDocs hooks: pages that are made of the code, never pasted, and equations as MathML, which browsers draw alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

sys.path.insert(0, str(Path(__file__).parent))
import pages

ROOT = Path(__file__).resolve().parent.parent.parent
_EQUATION = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.DOTALL | re.MULTILINE)
_STYLE = ".rst-content table.docutils td, .rst-content table.docutils th { white-space: normal; vertical-align: top }\n"


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages, the README as the first page, and the colours of code."""
    made = {
        "index.md": (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "]("),
        "compiler.md": pages.compiler(),
        "errors.md": pages.errors(),
        "api.md": pages.api(),
        "assets/site.css": HtmlFormatter(style="friendly").get_style_defs(".highlight") + "\n" + _STYLE,
    }
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`$$ … $$` on lines of their own becomes an equation."""
    return _EQUATION.sub(lambda found: f"<div>{convert(found[1], display='block')}</div>", markdown)
