"""`make model`: table and modules agree, and TLC's outputs are judged rightly. Needs no Java."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "docs/design/tla"
_spec = importlib.util.spec_from_file_location("model_run", MODELS / "run.py")
assert _spec is not None
assert _spec.loader is not None
run = sys.modules["model_run"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(run)

ALL = run.read_table(run.TABLE.read_text())
TEXTS = {path.stem: path.read_text() for path in MODELS.glob("*.tla")}

# --- the table and the modules ---


def test_every_module_has_configurations_and_every_configuration_a_module() -> None:
    assert {m.module for m in ALL} == set(TEXTS)


def test_every_module_has_what_holds_and_what_shows_that_it_is_not_vacuous() -> None:
    for module in TEXTS:
        assert {m.kind for m in ALL if m.module == module} >= {"holds", "mutants", "witness"}, module


@pytest.mark.parametrize("model", ALL, ids=lambda m: m.name)
def test_a_configuration_fits_its_module(model: run.Model) -> None:
    constants, operators = run.defined(TEXTS[model.module])
    assert set(model.constants) == constants
    assert {*model.invariants, "Init", "Next"} <= operators
    for operator in (model.symmetry, model.constraint):
        assert not operator or operator in operators
    for value in model.constants.values():
        if isinstance(value, str) and value.startswith("<-"):
            assert value.removeprefix("<-").strip() in operators


@pytest.mark.parametrize("module", sorted(TEXTS))
def test_every_rule_that_a_module_can_break_is_broken_by_a_mutant(module: str) -> None:
    assert run.broken_rules(TEXTS[module]) == {m.rule for m in ALL if m.module == module and m.rule}


@pytest.mark.parametrize("module", sorted(TEXTS))
def test_every_witness_of_a_module_is_looked_for(module: str) -> None:
    denials = {name for name in run.defined(TEXTS[module])[1] if name.startswith("Never") and name != "Never"}
    assert denials == {m.violates for m in ALL if m.module == module and m.kind == "witness"}


def test_a_mutant_breaks_an_invariant_that_holds_without_it() -> None:
    for model in ALL:
        if model.kind == "mutants":
            held = {i for m in ALL if m.module == model.module and m.kind == "holds" for i in m.invariants}
            assert model.violates in held, model.name


def test_the_readme_names_every_mutant_and_configuration() -> None:
    text = (MODELS / "README.md").read_text()
    named = set(re.findall(r"^\| `([a-z0-9-]+)` \| (\w+) \|", text, flags=re.MULTILINE))
    assert named == {(m.rule, m.module) for m in ALL if m.rule} | {(m.name, m.module) for m in ALL}


def test_a_plain_run_is_what_is_not_big() -> None:
    assert run.select(ALL, []) == [m for m in ALL if not m.big]
    assert {m.name for m in run.select(ALL, ["no-promise", "Floors"])} >= {"no-promise", "no-floor"}
    assert run.select(ALL, ["all"]) == ALL
    with pytest.raises(run.TableError, match="no model 'nothing'"):
        run.select(ALL, ["nothing"])


TABLE = """
[One]
invariants = ["Safe"]
constants = { Q = 2, As = ["a1", "a2"], On = true, W = "<- Words", T = '"out"', Ns = [1, 2] }
[One.holds]
plain = { constants = { Q = 3 } }
[One.mutants]
no-rule = { violates = "Safe" }
"""


def test_a_configuration_file_is_made_from_the_table() -> None:
    plain, mutant = run.read_table(TABLE)
    assert run.configuration(plain).splitlines() == [
        "INIT Init",
        "NEXT Next",
        "CHECK_DEADLOCK FALSE",
        "INVARIANT Safe",
        "CONSTANTS",
        "  a1 = a1",
        "  a2 = a2",
        "  Q = 3",
        "  As = {a1, a2}",
        "  On = TRUE",
        "  W <- Words",
        '  T = "out"',
        "  Ns = {1, 2}",
        "  Mutants = {}",
    ]
    assert '  Mutants = {"no-rule"}' in run.configuration(mutant)


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ("plain = { violates = 'Safe' }", "used twice: plain"),
        ("mute = {}", "must say what they violate"),
        ("mute = { violates = 'Safe', wrong = 1 }", "unknown keys wrong"),
        ("[One.walks]\nfar = {}", "need a number of walks"),
        ("[One.witness]\nfar = {}", "must say what they violate"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(extra: str, why: str) -> None:
    with pytest.raises(run.TableError, match=why):
        run.read_table(TABLE + extra)


# --- TLC's outputs, recorded and cut ---

HOLDS = """TLC2 Version 2.18 of 20 March 2023
Finished computing initial states: 1 distinct state generated at 2026-01-01 10:00:00.
Progress(10) at 2026-01-01 10:00:03: 1,200 states generated, 1,100 distinct states found, 90 states left on queue.
Model checking completed. No error has been found.
  Estimates of the probability that TLC did not check all reachable states
14301 states generated, 2896 distinct states found, 0 states left on queue.
The depth of the complete state graph search is 19.
Finished in 02s at (2026-01-01 10:00:05)
"""
VIOLATED = """Finished computing initial states: 1 distinct state generated at 2026-01-01 10:00:00.
Error: Invariant Agreement is violated.
Error: The behavior up to this point is:
State 1: <Initial predicate>
/\\ votes = {}

State 2: <Accept line 70, col 3 to line 77, col 50 of module Instances>
/\\ votes = {1}

57 states generated, 40 distinct states found, 17 states left on queue.
The depth of the complete state graph search is 2.
"""
WALKED = """Running Random Simulation with seed 1 with 1 worker on 2 cores.
Starting... (2026-01-01 10:00:00)
Computed 1 initial states...
Progress: 25000 states checked.
Progress: 61000 states checked.
Finished in 01s at (2026-01-01 10:00:05)
"""
WRONG = """Semantic errors:

*** Errors: 1

line 126, col 35 to line 126, col 38 of module Floors

Unknown operator: `Hear'.
Error: Parsing or semantic analysis failed.
"""
RUNNING = "Progress(10) at 10:00:03: 5,200 states generated, 1,100 distinct states found, 90 states left on queue.\n"


@pytest.mark.parametrize(
    ("said", "timed_out", "walks", "kind", "states", "depth"),
    [
        (HOLDS, False, False, "holds", 2896, 19),
        (VIOLATED, False, False, "violates", 40, 2),
        (WALKED, False, True, "walks", 61_000, 0),
        (WRONG, False, False, "error", 0, 0),
        (RUNNING, True, False, "timeout", 1100, 0),
        (WALKED, True, True, "timeout", 0, 0),
        (WALKED.replace("Finished", "Exiting"), False, True, "error", 0, 0),
        (WALKED.replace("Progress", "Nothing"), False, True, "walks", 0, 0),
        (RUNNING, False, False, "error", 0, 0),
        ("", False, False, "error", 0, 0),
        ("", False, True, "error", 0, 0),
        (VIOLATED, True, False, "violates", 40, 2),
    ],
)
def test_an_output_is_judged(said: str, timed_out: bool, walks: bool, kind: str, states: int, depth: int) -> None:
    outcome = run.judge(said, timed_out=timed_out, walks=walks)
    assert (outcome.kind, outcome.states, outcome.depth) == (kind, states, depth)
    assert outcome.invariant == ("Agreement" if kind == "violates" else "")


def test_an_error_says_what_tlc_said() -> None:
    assert "Unknown operator" in run.judge(WRONG, timed_out=False).note


def _model(kind: str, **more: object) -> run.Model:
    return run.Model("m", "One", kind, "", {}, ("Safe",), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "outcome", "why"),
    [
        (_model("holds", states=7, depth=3), run.Outcome("holds", "", 7, 3), ""),
        (_model("holds", states=7, depth=3), run.Outcome("holds", "", 8, 3), "expected 7 states"),
        (_model("holds", states=7, depth=3), run.Outcome("holds", "", 7, 4), "expected depth 3"),
        (_model("holds"), run.Outcome("timeout"), "expected: holds"),
        (_model("holds"), run.Outcome("violates", "Safe"), "expected: holds"),
        (_model("mutants", violates="Safe"), run.Outcome("violates", "Safe", 9, 9), ""),
        (_model("mutants", violates="Safe"), run.Outcome("violates", "Other"), "expected: violates Safe"),
        (_model("mutants", violates="Safe"), run.Outcome("holds"), "expected: violates Safe"),
        (_model("witness", violates="Safe"), run.Outcome("error", note="no such module"), "no such module"),
        (_model("walks", walks=9), run.Outcome("walks", "", 100), ""),
        (_model("walks", walks=9), run.Outcome("holds"), "expected: walks"),
    ],
)
def test_a_surprise_is_told(model: run.Model, outcome: run.Outcome, why: str) -> None:
    verdict = run.surprise(model, outcome)
    assert verdict.startswith(why)
    assert bool(verdict) == bool(why)
    assert ("SURPRISE" in run.line(model, outcome)) == bool(why)


# --- what is missing is said ---


def _program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_java_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run.main([]) == 2
    assert "no `java` is on the path" in capsys.readouterr().err


def test_an_old_java_is_told(tmp_path: Path) -> None:
    _program(tmp_path, "java", "echo 'openjdk version \"1.8.0_392\"' >&2")
    with pytest.raises(run.MissingError, match="Java 11 or newer"):
        run.find_tlc(tmp_path, str(tmp_path))


def test_without_maven_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TLC_JAR", raising=False)
    _program(tmp_path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    with pytest.raises(run.MissingError, match="no `mvn` is on the path"):
        run.find_tlc(tmp_path / "cache", str(tmp_path))


def test_what_maven_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TLC_JAR", raising=False)
    _program(tmp_path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    _program(tmp_path, "mvn", "echo cannot reach the repository; exit 1")
    with pytest.raises(run.MissingError, match="cannot reach the repository"):
        run.find_tlc(tmp_path / "cache", str(tmp_path))


def test_another_jar_than_the_expected_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TLC_JAR", raising=False)
    _program(tmp_path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    jar = tmp_path / run.JAR
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"PK")
    with pytest.raises(run.MissingError, match="not the TLC that was expected"):
        run.find_tlc(tmp_path, str(tmp_path))
    monkeypatch.setenv("TLC_JAR", str(jar))
    assert str(jar) in run.find_tlc(tmp_path, str(tmp_path)), "one's own jar is taken as it is"
    monkeypatch.setenv("TLC_JAR", str(tmp_path / "gone.jar"))
    with pytest.raises(run.MissingError, match=r"gone\.jar"):
        run.find_tlc(tmp_path, str(tmp_path))


def test_a_run_compares_what_tlc_says_with_what_is_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a program in the place of Java that says the same whatever it is asked."""
    (tmp_path / "said").write_text(HOLDS)
    _program(tmp_path, "java", f'if [ "$1" = -version ]; then echo \'version "17"\'; else cat {tmp_path}/said; fi')
    (tmp_path / "tlc.jar").write_bytes(b"")
    (tmp_path / "models.toml").write_text(TABLE)
    (tmp_path / "One.tla").write_text("")
    monkeypatch.setenv("TLC_JAR", str(tmp_path / "tlc.jar"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "TABLE", tmp_path / "models.toml")
    monkeypatch.setattr(run, "CACHE", tmp_path / "cache")
    assert run.main(["plain"]) == 0
    assert "2,896" in capsys.readouterr().out
    assert run.main([]) == 1, "the mutant was not caught"
    assert "SURPRISE: expected: violates Safe" in capsys.readouterr().out
    assert [p.name for p in (tmp_path / "cache/outputs").iterdir()] == ["no-rule.txt"]
    assert not list((tmp_path / "cache").glob("run-*"))


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "slow", f"printf '{RUNNING.strip()}\\n'; exec sleep 60")
    (tmp_path / "One.tla").write_text("")
    monkeypatch.setattr(run, "HERE", tmp_path)
    outcome = run.check([str(tmp_path / "slow")], _model("holds", seconds=1), tmp_path / "cache", 1, keep=False)
    assert (outcome.kind, outcome.states) == ("timeout", 1100)
