"""The page, a marimo app; `server.py` serves it. Cells wire controls to `memory.py`, `drawing.py` and the compiler.

marimo reads the cells' parameters as what they need and their returned names as what they define.
"""

import marimo

app = marimo.App(width="full", app_title="stateir")


@app.cell
def _():
    import marimo as mo

    from stateir import latex, load
    from stateir.compile_text import compile_text
    from stateir.editor.html import findings_html, forms_html
    from stateir.library import names
    from stateir.models.interference import BindingsConfig
    from stateir.models.play import drawing, memory, server

    return (
        BindingsConfig, compile_text, drawing, findings_html, forms_html, latex, load, memory, mo, names, server,
    )  # fmt: skip


@app.cell
def _(compile_text, memory, mo, server):
    opening = server.opening_text()
    # The last text that compiles is watched on while another is being typed.
    get_rule, set_rule = mo.state(compile_text(opening)[0])
    get_asked, set_asked = mo.state(None)
    get_knobs, set_knobs = mo.state(())
    editor = mo.ui.code_editor(opening, language="python", min_height=190, debounce=200, show_copy_button=False)
    return editor, get_asked, get_knobs, get_rule, set_asked, set_knobs, set_rule


@app.cell
def _(compile_text, editor, findings_html, forms_html, get_rule, latex, mo, set_rule):
    text = editor.value
    compiled, found = compile_text(text)
    if compiled is not None and (get_rule() is None or compiled.text != get_rule().text):
        set_rule(compiled)
    verdict = "refused" if compiled is None else f"compiles: {len(compiled.lines)} lines"
    said = [mo.Html(f'<div id="verdict"><b>{verdict}</b></div>'), mo.Html(findings_html(found, text))]
    forms = mo.md("")
    if compiled is not None:
        said.append(mo.md(f"$$\n{latex.rule(compiled)}\n$$"))
        forms = mo.Html(forms_html(compiled))
    columns = mo.hstack([mo.vstack(said), forms], widths="equal", gap=2, align="start")
    mo.vstack([mo.md("# A rule, and what its memory keeps"), editor, columns])
    return


@app.cell
def _(mo, names):
    compared = mo.ui.multiselect(list(names()), value=["additive", "delta"], max_selections=4, label="beside it")
    key_dim = mo.ui.slider(2, 64, value=16, label="key dimension", show_value=True)
    value_dim = mo.ui.slider(2, 64, value=12, label="value dimension", show_value=True)
    writes = mo.ui.slider(1, 48, value=12, label="number of keys", show_value=True)
    geometry = mo.ui.dropdown(
        {"independent": "sphere", "similar": "correlated", "orthonormal": "orthonormal", "repeated": "repeated"},
        value="similar", label="keys",
    )  # fmt: skip
    similarity = mo.ui.slider(0, 0.95, step=0.05, value=0.5, label="cosine of similar keys", show_value=True)
    distinct = mo.ui.slider(1, 16, value=4, label="different repeated keys", show_value=True)
    queries = mo.ui.dropdown(["own key", "previous key", "random"], value="random", label="query while writing")
    seed = mo.ui.number(0, 10_000, value=0, label="seed")
    return compared, distinct, geometry, key_dim, queries, seed, similarity, value_dim, writes


@app.cell
def _(compared, get_knobs, get_rule, load, memory, set_knobs):
    rules = {name: load(name) for name in compared.value}
    own = get_rule()
    if own is not None:
        rules[own.name if own.name not in rules else f"{own.name}, edited"] = own
    # Sliders are made anew, and lose their places, only when there are others.
    if memory.knobs(tuple(rules.values())) != get_knobs():
        set_knobs(memory.knobs(tuple(rules.values())))
    return (rules,)


@app.cell
def _(get_knobs, mo):
    gates = mo.ui.dictionary(
        {
            k.name: mo.ui.slider(
                k.low, k.high, step=(k.high - k.low) / 200, value=round(k.start, 3), label=k.name, show_value=True
            )
            for k in get_knobs()
        }
    )
    return (gates,)


@app.cell
def _(mo, writes):
    time = mo.ui.slider(0, writes.value, value=writes.value, label="writes so far", show_value=True, full_width=True)
    key = mo.ui.number(0, writes.value - 1, value=0, label="key")
    return key, time


@app.cell
def _(
    compared, distinct, gates, geometry, key, key_dim, mo, queries, seed, set_asked, similarity, time, value_dim,
    writes,
):  # fmt: skip
    button = mo.ui.button(label="query for this key", on_click=lambda _: set_asked(key.value))
    shape = mo.hstack([key_dim, value_dim, writes, geometry, similarity, distinct], wrap=True, justify="start")
    choices = mo.hstack([compared, queries, seed, key, button], wrap=True, justify="start")
    knobs = mo.hstack(list(gates.elements.values()), wrap=True, justify="start")
    mo.vstack([mo.md("## Its memory, write by write"), shape, choices, knobs, time])
    return


@app.cell
def _(
    BindingsConfig, distinct, gates, geometry, key_dim, memory, queries, rules, seed, similarity, value_dim, writes,
):  # fmt: skip
    traces, refused = {}, []
    try:
        bindings = BindingsConfig(
            writes.value, key_dim.value, value_dim.value, geometry.value, similarity.value, distinct.value
        )
    except ValueError as error:
        bindings, refused = None, [str(error)]
    for name, rule in rules.items() if bindings is not None else ():
        try:
            traces[name] = memory.watch(rule, bindings, seed.value, queries.value, gates.value)
        except ValueError as error:
            refused.append(str(error))
    return refused, traces


@app.cell
def _(drawing, mo, refused, time, traces):
    shown = [mo.callout(message, kind="warn") for message in refused]
    if traces:
        at = min(time.value, next(iter(traces.values())).values.shape[1])
        described = f"memory of {', '.join(traces)} after {at} writes"
        shown.append(mo.Html(drawing.image(drawing.memory_figure(traces, at), described)))
        if at:
            errors = drawing.image(drawing.error_figure(traces, at), f"errors after {at} writes")
            shown.append(mo.Html(errors))
    mo.vstack(shown)
    return


@app.cell
def _(drawing, get_asked, memory, mo, time, traces):
    asked = get_asked()
    answered = []
    if asked is not None and traces:
        count = next(iter(traces.values())).values.shape[1]
        i, now = min(asked, count - 1), min(time.value, count)
        answers = {name: memory.ask(trace, now, i) for name, trace in traces.items()}
        rows = [
            {
                "rule": name,
                "error": "not yet written" if a.error is None else f"{a.error:.6f}",
                "nearest value": "none" if a.nearest is None else f"of key {a.nearest}",
            }
            for name, a in answers.items()
        ]
        picture = mo.Html(drawing.image(drawing.answer_figure(answers, i), f"what is read for key {i}"))
        table = mo.ui.table(rows, selection=None, pagination=False, show_download=False)
        answered = [mo.md(f"### The answer for key {i} after {now} writes"), table, picture]
    mo.vstack(answered)
    return


if __name__ == "__main__":
    app.run()
