"""The command line as a user sees it: output, messages, exit codes."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from stateir import cli

RECURRENCES = Path(__file__).resolve().parent.parent / "recurrences"
MINE = """rule mine
input q: key unit, k: key unit, v: value, beta: scalar in (0, 1)
update S += outer(beta * k, v - k @ S)
read o = q @ S
"""


class Run:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, fails: bool = False) -> str:
        """What a command prints on the screen; its exit code must be 0, or not 0 if `fails`."""
        self.monkeypatch.setattr(sys, "argv", ["stateir", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = self.capsys.readouterr()
        self.err, self.code = err, exit_.value.code
        assert (exit_.value.code not in (0, None)) == fails, out + err
        return err if fails and not out else out


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


def test_check_reports_everything_of_one_rule(run: Run) -> None:
    out = run("check", "qed")
    for part in ("names", "normal form", "proofs", "stability", "plan"):
        assert f"\n{part}\n" in out
    assert "refuted  spectral radius of a token's transition <= 1: it is 1.09" in out
    assert "FAILED" not in out


def test_check_prints_one_line_for_each_of_several(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.rule"
    mine.write_text(MINE)
    lines = run("check", "gdn2", str(mine)).splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", "gdn2"], ["ok", "mine"]]


def test_check_as_json(run: Run) -> None:
    (found,) = json.loads(run("check", "gdn2", "--json"))
    assert found["rule"] == "gdn2"
    assert found["sound"] is True
    assert found["plan"]["decay"] == "key"
    assert [n["name"] for n in found["names"]] == ["q", "k", "v", "g", "b", "w", "S"]
    assert {p["holds"] for p in found["proofs"]} == {True}


def test_a_broken_rule_is_shown_with_carets_and_fails(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.rule"
    mine.write_text(MINE.replace("v - k @ S", "(v @ v) * tanh(k @ S)"))
    err = run("check", str(mine), fails=True)
    assert "error[E301]" in err
    assert f"{mine}:3:" in err
    assert "^^^^" in err


def test_findings_as_json(run: Run, tmp_path: Path) -> None:
    broken, warned = tmp_path / "broken.rule", tmp_path / "warned.rule"
    broken.write_text(MINE.replace("- k @", "- kk @"))
    warned.write_text(MINE.replace("beta * k,", "beta * unit(k),"))
    refused, sound = json.loads(run("check", str(broken), str(warned), "--json", fails=True))
    (error,) = refused.pop("diagnostics")
    assert refused == {"rule": str(broken), "sound": False}
    assert (error["code"], error["severity"], error["file"]) == ("E101", "error", str(broken))
    place = (error["line"], error["column"], error["end"])
    assert broken.read_text().splitlines()[place[0] - 1][place[1] - 1 : place[2] - 1] == "kk"
    assert error["suggestion"] == "k"
    assert error["message"] == "the name `kk` is not defined above this line"
    assert error["edits"] == [{"line": 3, "column": place[1], "end": place[2], "text": "k"}]
    assert sound["sound"] is True
    assert [d["code"] for d in sound["diagnostics"]] == ["W102"]


def test_a_warning_is_shown_and_does_not_fail(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.rule"
    mine.write_text(MINE.replace("beta * k,", "beta * unit(k),"))
    out = run("check", str(mine))
    assert "warning[W102]" not in out
    assert "warning[W102]" in run.err


def test_an_unused_name_is_a_warning_that_changes_nothing_else(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.rule"
    mine.write_text(MINE.replace("update", "param spare: scalar\nlet twice = 2 * q\nupdate"))
    assert "normal form" in run("check", str(mine))
    assert run.err.count("warning[W101]") == 2
    assert "the param `spare` is not used" in run.err
    assert "the let `twice` is not used" in run.err


def test_the_other_rules_are_checked_after_a_broken_one(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.rule"
    mine.write_text("rule mine\n")
    assert "gdn2" in run("check", str(mine), "gdn2", fails=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check",), "name rules or say --all"),
        (("check", "gdn2", "--all"), "name rules or say --all"),
        (("check", "gdn3"), "no rule 'gdn3'; did you mean 'gdn2'?"),
        (("check", "nowhere.rule"), "nowhere.rule: no such file or directory"),
        (("check", "QED"), "no rule 'QED'; did you mean 'qed'?"),
        (("check", "Gated-Delta"), "no rule 'Gated-Delta'; did you mean 'gated_delta'?"),
        (("check", str(RECURRENCES)), f"{RECURRENCES}: is a directory"),
        (("check", sys.executable), "not a text file in UTF-8"),
        (("fmt", str(RECURRENCES)), f"{RECURRENCES}: is a directory"),
        (("fmt", sys.executable), "not a text file in UTF-8"),
        (("emit", "gla", "-o", "nowhere/x.py"), "nowhere/x.py: no such file or directory"),
        (("explain", "E999"), "no error code E999"),
        (("prove", "gdn2", "kda", "--with", "zz=1"), "no input, param or state `zz`"),
        (("show", "titans_linear", "--as", "normal"), "no normal form"),
    ],
)
def test_wrong_calls_are_messages(run: Run, arguments: tuple[str, ...], message: str) -> None:
    err = run(*arguments, fails=True)
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert run.code == 2


def test_a_file_that_may_not_be_read_is_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    assert run("check", str(tmp_path / "mine.rule"), fails=True) == f"error: {tmp_path}/mine.rule: permission denied\n"


def test_a_rule_without_a_chunked_form_shows_its_step_form_and_says_why(run: Run) -> None:
    out = run("show", "titans_linear", "--as", "torch")
    assert out == run("show", "titans_linear", "--as", "step")
    assert run("show", "titans_linear", "--as", "torch") == out
    assert "note: titans_linear has no chunked form: E501: it carries several matrix states (S, M)" in run.err
    run("show", "gdn2", "--as", "torch")
    assert run.err == ""


def test_rules_of_one_name_are_told_apart_in_a_proof(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.rule"
    mine.write_text(MINE.replace("rule mine", "rule delta"))
    out = run("prove", str(mine), "delta", fails=True)
    assert f"refuted: {mine} is not delta: " in out
    assert f"of {mine} " in out


def test_a_wrong_replacement_is_shown_as_it_was_given(run: Run) -> None:
    err = run("prove", "qed", "gdn2", "--with", "lam=2 * bb", fails=True)
    assert err.splitlines()[:4] == [
        "error[E101]: the name `bb` is not defined above this line",
        " --> --with:1:5",
        "  | 2 * bb",
        "  |     ^^",
    ]
    assert "let" not in err
    assert "expected `)`" in run("prove", "qed", "gdn2", "--with", "lam=(1", fails=True)


def test_show(run: Run) -> None:
    assert run("show", "qed").startswith('rule qed "GDN-2')
    assert r"\begin{aligned}" in run("show", "qed", "--as", "latex")
    assert "u₀ = w ⊙ v − (b ⊙ k + λ d)·S" in run("show", "qed", "--as", "normal")
    assert "cost class" in run("show", "qed", "--as", "plan")


def test_prove(run: Run) -> None:
    assert run("prove", "qed", "gdn2", "--with", "lam=0") == "proved: qed with lam=0 is gdn2\n"
    out = run("prove", "delta", "additive", "--with", "beta=0.5", fails=True)
    assert "refuted: delta with beta=0.5 is not additive" in out
    assert "S " in out
    several = run("prove", "dplr", "rwkv7", "--with", "a=kappa", "b=-a*kappa", "g=w", "--state")
    assert several.startswith("proved")


def test_fmt(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.rule"
    mine.write_text(MINE)
    assert run("fmt", str(mine), "--check", fails=True) == f"not formatted: {mine}\n"
    assert mine.read_text() == MINE
    assert run("fmt", str(mine)) == f"formatted: {mine}\n"
    assert "input  q: key unit, k: key unit" in mine.read_text()
    assert run("fmt", str(mine)) == ""
    assert run("fmt", *map(str, RECURRENCES.glob("*.rule")), "--check") == ""


def test_emit_writes_a_file_that_needs_torch_alone(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "gla_form.py"
    assert run("emit", "gla", "-o", str(out)).startswith(f"{out}: ")
    text = out.read_text()
    assert "import torch" in text
    assert "stateir" not in text
    compile(text, str(out), "exec")


def test_verify(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.rule"
    mine.write_text(MINE)
    out = run("verify", str(mine))
    assert "gradient of beta" in out
    assert " 0 failed, " in out
    found = json.loads(run("verify", str(mine), "--json"))
    assert {check["passed"] for check in found["mine"]} == {True}


def test_a_failed_check_is_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from stateir.codegen import verify

    monkeypatch.setattr(verify, "FLOAT64", 0.0)
    out = run("verify", "delta", fails=True)
    assert "FAILED chunked = step: output" in out


def test_bench(run: Run) -> None:
    sizes = ("-T", "16", "-H", "1", "-K", "4", "-V", "6")
    out = run("bench", "delta", *sizes, "--repeats", "1", "--threads", "1")
    assert "T = 16" in out
    assert "\nstep " in out
    assert "\nchunked " in out


def test_a_backend_that_a_rule_lacks_is_refused(run: Run) -> None:
    err = run("emit", "titans_linear", "-o", "unused.py", "--target", "triton", fails=True)
    assert err.startswith("error: titans_linear has no triton backend")


def test_explain_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "stateir", "explain", "E302"], capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "E302" in done.stdout
    # The processor's seconds, so that other work on the machine does not count.
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 1.0


def test_explain_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['stateir', 'explain', 'E302']\n"
        "from stateir.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'sympy', 'lark', 'numpy', 'rich.console'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
