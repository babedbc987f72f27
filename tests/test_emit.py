"""Generated tests: whatever a finding contains, the file is our shape, says the same scenario, and runs."""

import ast
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import emit
from fuzz.generate import FEATURES, generate
from harness import testing
from harness.codec import decode, encode
from harness.execute import Result
from harness.scenario import Scenario
from harness.trace import Trace
from harness.verdict import HarnessError, Verdict, Violation

SCENARIO = generate(random.Random(7), frozenset(FEATURES))
FREED = Violation(
    "O3",
    "encoder-evictable-while-read",
    "EncoderCacheManager.freeable",
    "image-0 is evictable, though it is read",
    3,
)

NASTY = (
    '"""',
    "'''",
    '"',
    "\\",
    '\\"""',
    "\\N{",
    "\\ud800",
    "\ud800",
    "{x} {{ }} {% raw %} {{ 7*7 }}",
    "line\nline\r\n\x00\x1b[2J",
    "\u202e\u2028\u0085 é 漢字 \U0001f4a5",
    '""")\nimport os\nos.abort()\n"""',
    "'); import os; os.abort() #",
    "# noqa # fmt: off # type: ignore",
    "coding: latin-1 \\\n",
    "x" * 3000,
    "",
)
texts = st.one_of(
    st.sampled_from(NASTY), st.text(), st.lists(st.sampled_from(NASTY), max_size=5).map("".join)
)
# A fingerprint hashes its parts, which lone surrogates cannot be part of.
names = texts.map(lambda text: text.encode("utf-8", "replace").decode())
violations = st.builds(
    Violation,
    oracle=st.sampled_from(("O1", "O3", "O4", "O13", "O99")) | names,
    kind=st.sampled_from(("exception", "drafter-read-miss")) | names,
    anchor=st.sampled_from(("evicted", "vllm.a.b:C.f:KeyError:x = d[y]")) | names,
    message=texts,
    iteration=st.integers(0, 99),
)
scenarios = st.builds(
    lambda seed, features: generate(random.Random(seed), frozenset(features)),
    st.integers(0, 1 << 32),
    st.sets(st.sampled_from(sorted(FEATURES))),
)


def run(source: str) -> dict[str, object]:
    """The module's names, with the helper replaced by one that records."""
    calls: list[tuple[str, str]] = []
    found: dict[str, object] = {"calls": calls, "__name__": "generated"}
    code = compile(source, "generated.py", "exec")
    before = testing.assert_absent
    testing.assert_absent = lambda scenario, fingerprint: calls.append((scenario, fingerprint))
    try:
        exec(code, found)
        next(value for name, value in found.items() if name.startswith("test_"))()  # type: ignore[operator]
    finally:
        testing.assert_absent = before
    return found


@settings(deadline=None)  # the first example imports the oracles
@given(scenarios, violations, texts, st.lists(texts, max_size=3))
def test_nothing_breaks_out(scenario, violation, vllm, ledger):
    source = emit.emit(scenario, violation, vllm=vllm, ledger=tuple(ledger))
    assert source.isascii()
    tree = ast.parse(source)
    assert [type(node).__name__ for node in tree.body] == [
        "Expr",
        "ImportFrom",
        "Assign",
        "Assign",
        "FunctionDef",
    ]
    # The docstring, and the two constants: there is no other string, and nothing but one call that computes.
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    assert len(strings) == 3
    assert sum(isinstance(node, ast.Call) for node in ast.walk(tree)) == 1
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert functions == [emit.test_name(violation)]
    ((given, fingerprint),) = run(source)["calls"]
    assert decode(given.encode()) == scenario
    assert fingerprint == violation.fingerprint


@given(violations)
def test_names_are_snake_case(violation):
    name = emit.test_name(violation)
    assert name.isidentifier() and name.isascii() and name == name.lower() and len(name) <= emit.MAX_NAME
    assert name.startswith("test_") and not name.endswith("_") and "__" not in name


@pytest.mark.parametrize(
    ("oracle", "kind", "anchor", "name"),
    [
        (
            "O3",
            "encoder-evictable-while-read",
            "EncoderCacheManager.freeable",
            "encoder_output_evictable_while_read",
        ),
        ("O4", "drafter-read-miss", "never encoded", "drafter_reads_image_never_encoded"),
        ("O4", "drafter-read-miss", "evicted", "drafter_reads_evicted_image"),
        (
            "O1",
            "exception",
            "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_request_with_output:AssertionError:assert a",
            "assertion_error_in_update_request_with_output",
        ),
        ("O2", "kv-read-mismatch", "full attention: unwritten", "kv_read_mismatch_full_attention_unwritten"),
        (
            "O5",
            "counter-drift",
            "EncoderCacheManager.num_free_slots",
            "counter_drift_encoder_cache_manager_num_free_slots",
        ),
    ],
)
def test_names_say_what_is_shown(oracle, kind, anchor, name):
    assert emit.test_name(Violation(oracle, kind, anchor, "", 0)) == f"test_{name}"


def test_the_docstring_states_the_finding():
    source = emit.emit(SCENARIO, FREED, vllm="0.19.0", ledger=("38907",))
    told = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    assert told.startswith(
        "Encoder output evictable while read. vLLM 0.19.0: image-0 is evictable, though it is read."
    )
    assert "stays owned from the pass that schedules it" in told
    assert f"Fingerprint: {FREED.fingerprint} Oracle: O3 (encoder-evictable-while-read)" in told
    assert told.endswith("Found on: vLLM 0.19.0 Known as: 38907")


def test_a_lie_is_noticed(monkeypatch):
    monkeypatch.setattr(emit, "encode", lambda scenario: b'{"format": 1}\n')
    with pytest.raises(HarnessError, match="does not hold what it must hold"):
        emit.emit(SCENARIO, FREED, vllm="0.19.0")
    monkeypatch.setattr(emit, "_literal", lambda text: '""; import os; ""')
    with pytest.raises(HarnessError, match="generated test"):
        emit.emit(SCENARIO, FREED, vllm="0.19.0")


def test_generated_files_pass_our_linter(tmp_path):
    for seed in range(20):
        scenario = generate(random.Random(seed), frozenset(FEATURES))
        violation = Violation("O2", "kind", "an anchor", f"a \\ message{NASTY[seed % len(NASTY)]}", 1)
        source = emit.emit(scenario, violation, vllm="0.19.0", ledger=("38907", "45347"))
        (tmp_path / f"test_{seed}.py").write_text(source, encoding="ascii")
    config = f"--config={__file__.rpartition('tests')[0]}pyproject.toml"
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, config, "--no-cache", str(tmp_path)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


# -- what generated tests call ----------------------------------------------------------------------------------------


@pytest.fixture
def executing(monkeypatch):
    """Makes the helper see a result of our choice instead of running vLLM."""

    def give(verdict: Verdict, *violations: Violation, rejected: str | None = None) -> None:
        result = Result(verdict, violations, Trace(), 1, rejected)
        monkeypatch.setattr(testing, "execute", lambda scenario: result)

    monkeypatch.setattr(testing, "under_test", lambda: "0.19.0")
    return give


JSON = encode(Scenario(1)).decode()
OTHER = Violation("O7", "no-progress", "RUNNING", "hangs", 9)


def test_fails_on_its_own_fingerprint(executing):
    executing(Verdict.VIOLATION, OTHER, FREED)
    with pytest.raises(AssertionError) as failure:
        testing.assert_absent(JSON, FREED.fingerprint)
    said = str(failure.value)
    assert FREED.message in said and FREED.fingerprint in said and "iteration 3" in said
    assert (
        "SCHEDFUZZ_VLLM=0.19.0 python -m pytest 'tests/test_emit.py::test_fails_on_its_own_fingerprint'"
        in said
    )


def test_passes_on_any_other(executing, capsys):
    executing(Verdict.VIOLATION, OTHER)
    testing.assert_absent(JSON, FREED.fingerprint)
    assert OTHER.fingerprint in capsys.readouterr().out
    executing(Verdict.OK)
    testing.assert_absent(JSON, FREED.fingerprint)


def test_skips_what_this_vllm_refuses(executing):
    executing(Verdict.REJECTED, rejected="no such policy")
    with pytest.raises(
        pytest.skip.Exception, match=r"vLLM 0\.19\.0 refuses this configuration: no such policy"
    ):
        testing.assert_absent(JSON, FREED.fingerprint)


@pytest.mark.parametrize("text", ["", "{", '{"format": 2}', '{"format": 1, "engine": {"x": 1}}', "\ud800"])
def test_a_broken_scenario_is_our_fault(executing, text):
    executing(Verdict.OK)
    with pytest.raises(HarnessError, match="cannot be read"):
        testing.assert_absent(text, FREED.fingerprint)


def test_a_missing_vllm_is_no_finding(monkeypatch, tmp_path):
    monkeypatch.setenv(testing.VARIABLE, str(tmp_path))
    with pytest.raises(HarnessError, match="no vLLM to test: "):
        testing.assert_absent(JSON, FREED.fingerprint)


def test_which_vllm_is_under_test(monkeypatch):
    activated = []
    monkeypatch.setattr(testing.target, "activate", lambda target: activated.append(target.spec))
    monkeypatch.setattr(testing.target, "check", lambda version: None)

    def resolve(spec):
        if spec == "installed":
            raise testing.TargetError("none")
        return testing.Target(spec, spec, None)

    monkeypatch.setattr(testing.target, "resolve", resolve)
    monkeypatch.setenv(testing.VARIABLE, "0.20.2")
    assert testing.under_test() == "0.20.2"
    monkeypatch.delenv(testing.VARIABLE)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    assert testing.under_test() == testing.SUPPORTED[-1]
    assert activated == ["0.20.2", testing.SUPPORTED[-1]]
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.23.0"))
    assert testing.under_test() == "0.23.0"
    assert len(activated) == 2
