"""`scalebench compare`: its options, its exit codes and its files."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from scalebench.__main__ import main
from scalebench.core.result import write_result
from tests.builders import sweeps
from tests.builders.comparisons import machine_settings, train_settings, write_folder
from tests.builders.runs import record

STEADY = [0.1, 0.1005, 0.0995, 0.1002, 0.0998]
SLOW = [each * 1.05 for each in STEADY]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys):
    def called(*words):
        status = main(["compare", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return called


def failed_run(side, gpus=1):
    run_id = f"{side}-failed-{gpus}"
    sweeps.write_results(Path(side), [record(gpus=gpus, status="failed", block_s=None, baseline=None, run_id=run_id)])


def test_a_sweep_with_itself_finds_nothing(call):
    sweeps.sweep(Path("a"), repeats=3)
    sweeps.write_results(Path("a"), [sweeps.failed_run()])
    status, out, err = call("a", "a", "--threshold", "0")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "no difference: 7 pairs, both sides the same runs"


def test_the_same_sweep_measured_again_finds_nothing(call):
    sweeps.sweep(Path("a"), repeats=3)
    for repeat in range(3):
        for strategy, gpus in (("bare_torch", 1), ("ddp_gloo", 2), ("horovod_gloo", 4)):
            again = sweeps.run(strategy, gpus, repeat, noise=0.012, run_id=f"again-{strategy}-{gpus}-{repeat}")
            sweeps.write_results(Path("b"), [again])
    status, out, _ = call("a", "b", "--threshold", "1%")
    assert status == 0 and "no regression beyond 1 %" in out and "note: A is a, B is b" in out


@pytest.mark.parametrize(("threshold", "status"), [((), 0), (("--threshold", "3%"), 3), (("--threshold", "0.03"), 3),
                                                   (("--threshold", "10 %"), 0), (("--threshold=0",), 3)])  # fmt: skip
def test_a_slow_down_of_5_percent(call, threshold, status):
    write_folder("a", STEADY)
    write_folder("b", SLOW)
    results, out, err = call("a", "b", *threshold)
    assert (results, err) == (status, "") and "0.952 [" in out
    assert ("REGRESSION" in out) == (status == 3)


def test_not_comparable_is_4(call):
    write_folder("a", STEADY)
    write_folder("b", STEADY, **train_settings(batch_per_device=20))
    status, out, _ = call("a", "b", "--threshold", "3%")
    line = "closest rows differ in train.batch_per_device: 10 and 20; --ignore train.batch_per_device"
    assert status == 4 and line in out
    assert call("a", "b", "--ignore", "train.batch_per_device")[0] == 0


def test_a_failed_run_is_5_with_a_threshold(call):
    write_folder("a", STEADY)
    write_folder("b", STEADY)
    failed_run("b", 2)
    assert call("a", "b")[0] == 0
    status, out, _ = call("a", "b", "--threshold", "3%")
    assert status == 5 and "B ddp gpus=2: failed: failed as configured" in out


def test_only_failed_runs(call):
    write_folder("a", STEADY)
    failed_run("b")
    assert call("a", "b")[0] == 4 and call("a", "b", "--threshold", "0")[0] == 5
    status, out, _ = call("b", "b")
    assert status == 4 and "not comparable: no run of A went well" in out


def test_by_a_key_of_one_folder(call):
    write_folder("a", STEADY, **train_settings(data_format="nhwc"))
    write_folder("b", [each / 1.25 for each in STEADY], **train_settings(data_format="nchw"))
    status, out, _ = call("a", "b", "--by", "train.data_format")
    assert status == 0 and out.splitlines()[0] == "nchw over nhwc", "the first folder's value is the base"
    status, out, _ = call(".", "--by", "train.data_format", "--base", "nhwc")
    assert status == 0 and "nchw over nhwc: 1.250 [" in out


def test_figures_of_the_values_of_a_key(call):
    write_folder("a", STEADY, **train_settings(data_format="nhwc"))
    write_folder("b", [each / 1.25 for each in STEADY], **train_settings(data_format="nchw"))
    words = ("a", "b", "--by", "train.data_format", "--figures", "charts")
    status, out, err = call(*words, "--format", "json")
    assert status == 0 and json.loads(out)["by"] == "train.data_format"
    stems = [f"compare-{name}-train-data-format-1" for name in ("throughput", "ratio")]
    assert err.splitlines() == [f"written: charts/{stem}.png" for stem in stems]
    assert {path.name for path in Path("charts").iterdir()} == {f"{s}.{kind}" for s in stems for kind in ("png", "svg")}
    Path("file").write_text("")
    assert call(*words[:-1], "file")[::2] == (2, "scalebench: --figures file: File exists; choose another folder\n")
    assert call("a", "--save", "main", "--figures", "charts")[0] == 2


def test_several_keys_are_left_out(call):
    write_folder("a", STEADY, seed=1)
    write_folder("b", SLOW, **train_settings(batch_per_device=20))
    for words in (["--ignore", "seed,train"], ["--ignore", "seed", "--ignore", "train.batch_per_device"]):
        assert call("a", "b", *words, "--threshold", "3%")[0] == 3


def test_formats_and_files(call):
    write_folder("a", STEADY)
    write_folder("b", SLOW)
    status, out, _ = call("a", "b", "--threshold", "3%", "--format", "json")
    tree = json.loads(out)
    assert status == tree["exit_code"] == 3 and tree["contrasts"][0]["pairs"][0]["regression"] is True
    status, out, _ = call("a", "b", "--threshold", "3%", "--format", "junit", "--out", "found.xml")
    assert status == 3 and "REGRESSION" in out and out.splitlines()[-1] == "written: found.xml"
    assert ET.parse("found.xml").getroot().find("testsuite").get("failures") == "1"
    assert call("a", "b", "--format", "markdown")[1].startswith("**1 slower")
    call("a", "b", "--out", "found.txt")
    assert Path("found.txt").read_text().startswith("B over A") and not list(Path().glob(".found*"))


def test_against_a_saved_baseline(call):
    write_folder("a", STEADY)
    write_folder("b", SLOW)
    status, out, _ = call("--save", "main", "a")
    assert status == 0 and out.startswith(
        "baseline 'main': 5 runs in 1 session of cpu a processor, 2 cores, about 8 GiB, no GPU: "
    )
    assert out.endswith("main (a verdict needs 3 sessions)\n")
    status, out, _ = call("--against", "main", "b", "--threshold", "3%")
    assert status == 3 and "A is baseline 'main', B is b" in out
    assert call("--against", "main", "a", "--threshold", "3%")[0] == 0
    assert call("--save", "main", "b")[1].startswith("baseline 'main': 10 runs in 1 session of ")
    assert call("--save", "main", "b", "--replace")[1].startswith("baseline 'main': 5 runs in 1 session of ")
    assert call("--against", "main", "b", "--threshold", "3%")[0] == 0


def save_days(levels, call):
    for day, level in enumerate(levels, 1):
        call("--save", "main", str(write_folder(f"day{day}", [level * each for each in STEADY], side="a", day=day)))


def test_a_gate_needs_three_sessions_of_its_baseline(call):
    """The recipe for CI: append, and pass until there are enough."""
    gate = ("--against", "main", "today", "--threshold", "3%")
    write_folder("today", [1.05 * each for each in STEADY], side="b", day=9)
    write_folder("slow", [1.5 * each for each in STEADY], side="b", day=9)
    save_days([1.0, 1.04], call)
    status, out, _ = call(*gate)
    line = "too little data: 1 of 1 pairs without a verdict, such as ddp gpus=1: 2 and 1 sessions give no verdict, "
    assert status == 6 and out.splitlines()[-1].startswith(line)
    assert call(*gate, "--missing", "ok")[0] == 0
    _, junit, _ = call(*gate, "--format", "junit")
    assert 'type="too little data"' in junit and 'errors="1"' in junit
    assert 'skipped="1"' in call(*gate, "--missing", "ok", "--format", "junit")[1]
    save_days([1.0, 1.04, 0.97, 1.02], call)
    status, out, _ = call(*gate)
    assert status == 0 and "Student's t, 4 and 1 sessions" in out and "no difference resolved" in out
    assert call("--against", "main", "slow", "--threshold", "3%", "--missing", "ok")[0] == 3


def test_too_little_data_of_the_new_runs_is_not_excused(call):
    save_days([1.0, 1.04, 0.97], call)
    write_folder("today", STEADY, side="b", day=9, flags=["busy_machine"])
    status, out, _ = call("--against", "main", "today", "--threshold", "3%", "--missing", "ok")
    assert status == 6 and "other programs kept the processors busy" in out


def test_one_run_each(call):
    write_folder("a", [0.1])
    write_folder("b", [0.12])
    status, out, _ = call("a", "b")
    assert status == 0 and out.splitlines()[-1] == "undecided: no verdict: one repeat, measure.repeats=3 decides"
    assert call("a", "b", "--threshold", "3%")[0] == 6


def test_other_days_are_one_session_on_request(call):
    write_folder("a", STEADY)
    write_folder("b", SLOW, day=2)
    assert call("a", "b", "--threshold", "3%")[0] == 6
    assert call("a", "b", "--threshold", "3%", "--same-session")[0] == 3


def test_another_machine_has_no_baseline(call):
    write_folder("a", STEADY)
    write_folder("b", SLOW, **machine_settings(cpus=4))
    call("--save", "main", "a")
    status, out, _ = call("--against", "main", "b", "--threshold", "3%")
    line = "not comparable: no baseline 'main' for this machine (cpu a processor, 4 cores, about 8 GiB, no GPU); "
    assert status == 4 and out.startswith(line + "saved ones are for cpu a processor, 2 cores")
    assert call("--against", "main", "b", "--missing", "ok")[0] == 0
    status, out, _ = call("--against", "main", "b", "--missing", "ok", "--format", "junit")
    assert status == 0 and "<skipped" in out
    _, out, _ = call("--against", "main", "b", "--missing", "ok", "--format", "json")
    assert json.loads(out)["exit_code"] == 0
    write_folder("c", STEADY, **train_settings(batch_per_device=20))
    assert call("--against", "main", "c", "--missing", "ok")[0] == 4, "there is one for this machine"


REFUSED = {
    "": "compare needs two folders, A and B; or one and --by KEY, --against NAME or --save NAME",
    "a": "compare needs two folders, A and B; ",
    "a a a": "compare needs two folders, A and B; ",
    "--by gpus": "no sweep below ./multirun; ",
    "--against main": "no sweep below ./multirun; ",
    "a nowhere": "no result.json at or below nowhere; ",
    "a empty": "no result.json at or below empty; ",
    "a --by train.precison": "no key 'train.precison'; did you mean 'train.precision'?",
    "a a --ignore sed": "no key 'sed'; did you mean 'seed'?",
    "a --by gpus --base 3": "--base: no value of gpus '3'; known: 1",
    "a a --base 3": "compare: --base names a value of the key of --by KEY",
    "a a --threshold 100%": "--threshold 100%: write a share of throughput from 0 to below 1, such as 3% or 0.03",
    "a a --threshold x": "--threshold x: write a share of throughput from 0 to below 1, such as 3% or 0.03",
    "a a --threshold 3": "--threshold 3: write a share",
    "a a --threshold=-1%": "--threshold -1%: write a share",
    "a a --threshold": "compare: argument --threshold: expected one argument; usage: ",
    "a a --format xml": "compare: argument --format: invalid choice: 'xml'",
    "a a --nope": "compare: no option '--nope'; known: --against, --base, ",
    "a a --out nowhere/found.txt": "--out nowhere/found.txt: No such file or directory; choose another file",
    "a a --out empty": "--out empty: Is a directory; choose another file",
    "a --save ../x": "baseline name '../x': ",
    "a --against ..": "baseline name '..': ",
    "a --save x --by gpus": "compare: --save and --by do not go together",
    "a a --missing ok": "compare: --missing ok is for --against NAME",
    "a a --replace": "compare: --replace is for --save NAME",
    "a --save x --same-session": "compare: --same-session is for A and B, or --by KEY",
    "a --against x --same-session": "compare: --same-session is for A and B, or --by KEY",
    "bad --save x": "bad/0/result.json is no whole JSON file",
    "a bad": "bad/0/result.json is no whole JSON file",
    "a newer": "newer/0/result.json has schema version 99",
}


@pytest.mark.parametrize(("words", "line"), REFUSED.items(), ids=list(REFUSED))
def test_bad_input_is_one_line_and_status_2(call, words, line):
    write_folder("a", STEADY[:1])
    for name in ("empty", "bad/0", "newer/0"):
        Path(name).mkdir(parents=True)
    text = Path("a/0/result.json").read_text()
    Path("bad/0/result.json").write_text(text[:-100])
    Path("newer/0/result.json").write_text(text.replace('"schema_version": 2', '"schema_version": 99'))
    status, out, err = call(*words.split())
    assert (status, out) == (2, "") and err.startswith(f"scalebench: {line}") and err.count("\n") == 1
    assert not list(Path().glob("**/.*"))


def test_an_existing_file_survives_a_failed_write(call, monkeypatch):
    write_folder("a", STEADY[:1])
    Path("found.txt").write_text("before")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scalebench.core.json_files.os.replace", full)
    assert call("a", "a", "--out", "found.txt")[0] == 2
    assert Path("found.txt").read_text() == "before" and not list(Path().glob(".found*"))


def test_two_machines_in_one_folder_are_not_mixed(call):
    write_folder("a", [0.1])
    other = Path("a/other")
    other.mkdir()
    write_result(record(block_s=0.2, run_id="other", baseline=None, **machine_settings(cpu_model="another")), other)
    status, out, _ = call("a", "a")
    assert status == 0 and out.count("the same run  ") == 2
