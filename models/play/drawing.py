"""The page's pictures, drawn without pyplot: its sessions are threads, and pyplot keeps a global list of figures."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stateir.models.drawing import COLOURS
from stateir.models.interference import Trace

from .memory import Answer


def memory_figure(traces: Mapping[str, Trace], writes: int) -> Figure:
    """A column for each rule: its state after `writes` writes, and the error of every key after every write.

    The colours of a row mean the same in all columns and after every write, so that steps and rules can be compared.
    """
    figure = Figure(figsize=(3.1 * len(traces) + 0.6, 5.4), layout="constrained")
    top = max(float(np.abs(t.states).max()) for t in traces.values()) or 1.0
    worst = max(float(np.nanmax(t.error)) for t in traces.values()) or 1.0
    axes = figure.subplots(2, len(traces), squeeze=False)
    for column, (name, trace) in enumerate(traces.items()):
        state, errors = axes[:, column]
        drawn = state.imshow(trace.states[0, writes], cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto")
        state.set_title(name, fontsize=10)
        shown = errors.imshow(trace.error[0], cmap="viridis_r", vmin=0, vmax=worst, aspect="auto")
        if writes:
            errors.axhline(writes - 1, color="#D55E00", lw=1.2)
        state.set_xlabel("value channel")
        errors.set_xlabel("stored key")
        for ax in (state, errors):
            ax.locator_params(integer=True)
        if column == 0:
            state.set_ylabel("key channel")
            errors.set_ylabel("after write")
    figure.colorbar(drawn, ax=list(axes[0]), label=f"S after {writes} writes", shrink=0.8)
    figure.colorbar(shown, ax=list(axes[1]), label="error |Sᵀk − v|²", shrink=0.8)
    return figure


def error_figure(traces: Mapping[str, Trace], writes: int) -> Figure:
    """The error of each key that is stored after `writes` writes; at least one."""
    figure = Figure(figsize=(7.5, 2.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(traces)
    for i, (name, trace) in enumerate(traces.items()):
        error = trace.error[0, writes - 1, :writes]
        place = np.arange(writes) + (i - (len(traces) - 1) / 2) * width
        axes.bar(place, error, width, color=COLOURS[i % len(COLOURS)], label=f"{name}, mean {error.mean():.3g}")
    axes.set(xlabel="stored key", ylabel="error |Sᵀk − v|²", xlim=(-0.6, writes - 0.4))
    _finish(axes)
    return figure


def answer_figure(answers: Mapping[str, Answer], key: int) -> Figure:
    """The value of a key beside what each rule reads for it."""
    figure = Figure(figsize=(7.5, 2.2), layout="constrained")
    axes = figure.subplots()
    value = next(iter(answers.values())).value
    channels = np.arange(len(value))
    axes.bar(channels, value, 0.8, color="0.85", label=f"value of key {key}")
    for i, (name, answer) in enumerate(answers.items()):
        axes.plot(channels, answer.read, "o", ms=4, color=COLOURS[i % len(COLOURS)], label=f"{name} reads")
    axes.set(xlabel="value channel")
    _finish(axes)
    return figure


def image(figure: Figure, described: str) -> str:
    """The figure as an HTML image with its data inside."""
    data = BytesIO()
    figure.savefig(data, format="png", dpi=110)
    text = b64encode(data.getvalue()).decode()
    return f'<img alt="{escape(described)}" style="max-width:100%" src="data:image/png;base64,{text}">'


def _finish(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
