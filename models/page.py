"""One HTML page of an experiment's folder: configuration, tables, figures, seeds and versions in one file."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .config import config_hash, require, to_dict
from .lab import RUNS, Finished, read_finished

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
figure { margin: 2rem 0; } figure svg { width: 100%; height: auto; }
code, pre { background: #f5f5f5; padding: .1rem .3rem; } pre { padding: .7rem; overflow-x: auto; }
"""


def page(folder: Path) -> str:
    """The page. Figures are those that lie in the folder; numbers are taken from its runs.jsonl.

    Raises:
        ValueError: if no run of the folder ended.
    """
    runs = read_finished(folder)
    require(len(runs) > 0, f"folder must hold a {RUNS} with a run that ended, got {folder}")
    parts = [f"<h1>{_text(_title(folder))}</h1>", _summary(runs), _configuration(runs)]
    parts += [_figure(file) for file in sorted(folder.glob("*.json"))]
    parts += ["<h2>Runs</h2>", _table(*_runs(runs)), "<h2>Versions</h2>", _versions(runs)]
    title = _text(_title(folder))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"</head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def markdown_table(text: str) -> str:
    """A Markdown table as an HTML one; other lines as paragraphs."""
    out: list[str] = []
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if rows:
            out.append(_table(rows[0], rows[2:]))
            rows = []
        if line.strip():
            out.append(f"<p>{_text(line)}</p>")
    return "\n".join(out)


def _title(folder: Path) -> str:
    for file in sorted(folder.glob("*.json")):
        title = json.loads(file.read_text(encoding="utf-8"))["config"].get("title")
        if title:
            return str(title)
    return folder.name


def _summary(runs: Sequence[Finished]) -> str:
    seeds = sorted({r.config.seed for r in runs})
    rates = sorted({r.config.lr for r in runs})
    rules = sorted({r.config.model.rule for r in runs})
    together = sum(r.seconds / r.together for r in runs)
    return (
        f"<p>{len(runs)} runs of {len(rules)} rules ({_text(', '.join(rules))}); seeds "
        f"{', '.join(map(str, seeds))}; learning rates {', '.join(f'{x:g}' for x in rates)}; "
        f"{together / 60:.1f} minutes of training.</p>"
    )


def _configuration(runs: Sequence[Finished]) -> str:
    """What all runs share, as JSON; what differs is in the table of runs."""
    shared = _shared([to_dict(r.config) for r in runs])
    return f"<h2>Configuration shared by all runs</h2>\n<pre>{_text(json.dumps(shared, indent=1))}</pre>"


def _shared(configs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in configs[0].items():
        others = [c[name] for c in configs]
        if isinstance(value, dict) and all(isinstance(o, dict) and o.keys() == value.keys() for o in others):
            found[name] = _shared(others)
        elif all(o == value for o in others):
            found[name] = value
    return found


def _figure(file: Path) -> str:
    told = json.loads(file.read_text(encoding="utf-8"))
    svg = file.with_suffix(".svg").read_text(encoding="utf-8")
    svg = svg[svg.index("<svg") :]
    table = file.with_suffix(".md")
    caption = f"<figcaption>{file.stem}, {told['hash']}: <code>{_text(told['command'])}</code></figcaption>"
    told_table = markdown_table(table.read_text(encoding="utf-8")) if table.exists() else ""
    return f"<figure>\n{_own_ids(svg, file.stem)}\n{caption}</figure>\n{told_table}"


def _own_ids(svg: str, name: str) -> str:
    """Ids are a page's, not a figure's: without a prefix one figure would use another's markers."""
    return svg.replace('id="', f'id="{name}-').replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')


def _runs(runs: Sequence[Finished]) -> tuple[list[str], list[list[str]]]:
    head = ["run", "rule", "state bytes", "parameters", "lr", "seed", "final", "best", "tests"]
    rows = [
        [
            config_hash(r.config), r.config.model.rule, f"{r.state_bytes:,}", f"{r.parameters:,}", f"{r.config.lr:g}",
            str(r.config.seed), f"{r.final:.3f}", f"{r.best:.3f}", " ".join(f"{a:.3f}" for a in r.tests),
        ]
        for r in sorted(runs, key=lambda r: (r.config.model.rule, r.state_bytes, r.config.lr, r.config.seed))
    ]  # fmt: skip
    return head, rows


def _versions(runs: Sequence[Finished]) -> str:
    groups: dict[str, list[Finished]] = {}
    for r in runs:
        groups.setdefault(", ".join(f"{k} {v}" for k, v in r.versions.items()), []).append(r)
    rows = [
        [told, str(len(own)), f"{median(60 * r.together / r.seconds for r in own):.2f}"] for told, own in groups.items()
    ]
    return _table(["versions", "runs", "runs per minute, median"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{_text(c)}</th>" for c in head)
    body = "".join("<tr>" + "".join(f"<td>{_text(c)}</td>" for c in row) + "</tr>\n" for row in rows)
    return f"<table><tr>{cells}</tr>\n{body}</table>"


def _text(text: str) -> str:
    return html.escape(text)
