"""JobSets: their manifest against the fields of the CRD, and their pods' commands as processes of this machine.

No JobSet of scalebench has run on a real cluster. Pods, Jobs and Secrets passed kubernetes-validate --strict once.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from omegaconf import OmegaConf

from scalebench.__main__ import main
from scalebench.cluster import jobset
from scalebench.cluster.kubectl import Kubectl
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.core.result import read_result
from scalebench.core.spec import HardwareSpec, KubernetesSpec
from scalebench.runner.collect import RunOutcome
from scalebench.runner.jobs.job import PlannedJob, write_result_for
from scalebench.runner.launchers.agents import LOST
from scalebench.runner.parent import RunRequest
from scalebench.sweeps import job_main, jobset_runs
from tests.builders.runs import simulated_config, wait_until

pytestmark = pytest.mark.cold
HERE = Path(__file__).parent
COMMAND = [sys.executable, "-m", "scalebench", "hardware=kubernetes", "hardware.devices=cpu"]
SCHEMA = OmegaConf.to_container(OmegaConf.load(HERE / "jobset_v1alpha2.yaml"))


def manifest_of(nodes=2, gpus=8, **settings):
    hardware = HardwareSpec("kubernetes", cpus_per_node=64, kubernetes=KubernetesSpec(**settings))
    manifest = jobset.make_jobset("scalebench-16-ab", hardware, nodes, gpus, 1920)
    jsonschema.validate(manifest, SCHEMA)
    return manifest, {job["name"]: job["template"]["spec"] for job in manifest["spec"]["replicatedJobs"]}


def test_a_jobset_is_what_the_crd_takes_and_starts_nothing_twice():
    manifest, jobs = manifest_of()
    assert manifest["metadata"] == {"name": "scalebench-16-ab", "labels": {}}
    assert manifest["spec"]["failurePolicy"] == {"maxRestarts": 0}
    for name, nodes in {"leader": 1, "workers": 2}.items():
        job, pod = jobs[name], jobs[name]["template"]["spec"]
        assert (job["parallelism"], job["completions"], job["backoffLimit"]) == (nodes, nodes, 0)
        limit_s = {"leader": None, "workers": 1920}[name]  # whose GPUs are those that others wait for
        assert "activeDeadlineSeconds" not in job, "which would include the time in which its pods are pending"
        assert (pod.get("activeDeadlineSeconds"), pod["restartPolicy"]) == (limit_s, "Never")
        assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["volumes"]
        (container,) = pod["containers"]
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
        key = {"secretKeyRef": {"name": "scalebench-16-ab", "key": "key"}}
        assert {"name": "SCALEBENCH_AGENT_KEY", "valueFrom": key} in container["env"]
    workers, leader = (jobs[name]["template"]["spec"]["containers"][0] for name in ("workers", "leader"))
    assert workers["resources"] == {"limits": {"cpu": 64, "nvidia.com/gpu": 8}}
    assert "limits" not in leader["resources"]


def test_what_a_site_sets_is_in_the_jobset(tmp_path):
    template = tmp_path / "own.yaml"
    text = Path(jobset.__file__).with_suffix(".yaml").read_text()
    template.write_text(text.replace("medium: Memory", "medium: Memory, sizeLimit: 64Gi"))
    manifest, jobs = manifest_of(
        gpus=None, namespace="ml", queue="gpus", claim="data", image="site/image:1", python="/opt/python",
        template=str(template),
    )  # fmt: skip
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    assert manifest["metadata"] == {"name": "scalebench-16-ab", "namespace": "ml", "labels": labels}
    pod = jobs["workers"]["template"]["spec"]
    assert pod["volumes"][:2] == [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    (container,) = pod["containers"]
    assert (container["image"], container["command"][0]) == ("site/image:1", "/opt/python")
    assert container["resources"] == {"limits": {"cpu": 64}}
    _, jobs = manifest_of(resource="amd.com/gpu")
    assert jobs["workers"]["template"]["spec"]["containers"][0]["resources"]["limits"]["amd.com/gpu"] == 8


@pytest.mark.parametrize(
    ("key", "value"),
    [("queue", "GPUs"), ("namespace", "a b"), ("image", "a b"), ("python", "-c"), ("image", "${oc.env:HOME}")],
)
def test_values_that_no_cluster_accepts_are_refused(key, value):
    with pytest.raises(InputError, match=f"hardware.kubernetes.{key}='"):
        jobset.check_kubernetes_options(KubernetesSpec(**{key: value}))


def test_a_secret_has_the_key_and_no_more_than_kubernetes_takes():
    secret = jobset.make_secret("a", KubernetesSpec(namespace="ml"), "0123", b"runs")
    expected = ({"name": "a", "namespace": "ml"}, {"key": "MDEyMw==", "runs": "cnVucw=="})
    assert (secret["metadata"], secret["data"]) == expected
    with pytest.raises(InputError, match="do not fit into a Secret"):
        jobset.make_secret("a", KubernetesSpec(), "0123", bytes(1 << 20))


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Return the path of a kubectl whose pods are processes of this machine."""
    state, path = tmp_path / "state", tmp_path / "bin" / "kubectl"
    state.mkdir()
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\n{(HERE / 'fake_kubectl.py').read_text()}")
    path.chmod(0o755)
    with socket.socket() as probe:
        probe.bind((socket.gethostname(), 0))
        monkeypatch.setenv("FAKE_PORT", str(probe.getsockname()[1]))
    monkeypatch.setenv("FAKE_KUBECTL", str(state))
    yield path
    for file in state.glob("*/pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)


@pytest.fixture
def cluster(kubectl, tmp_path):
    """Return a function that runs scalebench beside it."""

    def run(*words, path=f"{kubectl.parent}:{os.environ['PATH']}"):
        environment = os.environ | {"PATH": path}
        return subprocess.run(
            [*COMMAND, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )

    return run


SMALL = (
    "hardware.gpus_per_node=1 hardware.cpus_per_node=1 measure=quick measure.probes=false measure.min_s=0.3 "
    "dataset.size=2000"
).split()


def test_runs_take_turns_in_the_pods_of_a_jobset(cluster, tmp_path):
    text = "strategy=simulated gpus=2 measure.repeats=2 measure.monitor=false train.batch_per_device=8,16 baseline=none"
    words = text.split()
    done = cluster("--multirun", *SMALL, *words, "sweep.report=false", "hydra.sweep.dir=sweep")
    logs = {path.parent.name: path.read_text() for path in (tmp_path / "state").glob("*/log")}
    assert done.returncode == 0, (done.stdout, done.stderr, logs)
    results = [read_result(path) for path in sorted((tmp_path / "sweep").glob("*/result.json"))]
    assert [(each.status, each.reason, each.scale.nodes) for each in results] == [("ok", None, 2)] * 4
    for each in results:
        assert each.scheduler.name == "kubernetes" and each.scheduler.nodes == ["localhost", "127.0.0.1"]
        assert each.scheduler.job_id.startswith("scalebench-2-") and each.cohort and len(each.ranks) == 2
    assert (tmp_path / "state" / "deleted").read_text() == "secret\n"
    key = (tmp_path / "state" / "Secret.json").read_text()
    assert logs["workers-0-0"] == logs["workers-0-1"] == "" and key not in done.stdout


@pytest.fixture
def interrupted(kubectl, tmp_path):
    """Return a function that starts a sweep, and ends its program by a signal once the pods run."""

    def interrupt(sign):
        environment = os.environ | {"PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
        with subprocess.Popen([*COMMAND, *SWEEP], env=environment, cwd=tmp_path, stderr=subprocess.PIPE) as program:
            wait_until((tmp_path / "state" / "leader-0-0" / "pid").exists, 120)
            program.send_signal(sign)
            return program.communicate(timeout=120)[1].decode()

    return interrupt


SWEEP = (
    f"--multirun {' '.join(SMALL)} strategy=simulated gpus=2 measure.repeats=2 measure.monitor=false baseline=none "
    "measure.min_s=3 sweep.report=false hydra.sweep.dir=sweep"
).split()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGHUP])
def test_the_jobset_of_a_program_that_ended_is_followed_by_the_next(sign, interrupted, cluster, tmp_path):
    """Into another sweep, too; without resume=true its folders are refused."""
    keeps = "scalebench: 1 job keeps running; the same command with resume=true waits for the rest\n"
    assert interrupted(sign) == (keeps if sign == signal.SIGHUP else "")
    name = json.loads((tmp_path / "sweep" / "1" / "job.json").read_text())["job_id"]
    assert f"job {name} of {tmp_path}/sweep/0 still runs; resume=true waits for it" in cluster(*SWEEP).stderr
    done = cluster(*SWEEP, "hydra.sweep.dir=again", "resume=true")
    results = [read_result(tmp_path / "again" / number / "result.json") for number in "01"]
    assert [(each.status, each.scheduler.job_id) for each in results] == [("ok", name)] * 2 and done.returncode == 0
    assert (tmp_path / "state" / "names").read_text().splitlines() == [
        f"secret/{name}",
        f"jobset.jobset.x-k8s.io/{name}",
    ]
    assert (tmp_path / "state" / "deleted").read_text() == "secret\n"


def test_a_cancelled_jobset_is_deleted_and_its_runs_are_rows(interrupted, tmp_path):
    assert interrupted(signal.SIGTERM) == "scalebench: cancelled; the same command with resume=true does the rest\n"
    assert (tmp_path / "state" / "deleted").read_text() == "jobset\nsecret\n"
    results = [read_result(tmp_path / "sweep" / number / "result.json") for number in "01"]
    assert [(each.status, each.reason) for each in results] == [("cancelled", "cancelled before it was over")] * 2


DEAD = {
    "metadata": {"name": "w-1"},
    "status": {"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled"}}}]},
}
LATE = {"metadata": {"name": "w-0"}, "status": {"reason": "DeadlineExceeded"}}
FAILED = {"terminalState": "Failed", "conditions": [{"status": "True", "reason": "FailedJobs", "message": "a job"}]}


@pytest.mark.parametrize(("variables", "status", "reason"), [
    ({"FAKE_REFUSAL": "Error from server: no quota"}, "failed", r"kubectl create .*: Error from server: no quota"),
    ({"FAKE_STATUS": ["deleted"]}, "failed", r"kubectl get jobset .*: Error from server \(NotFound\): .* not found"),
    ({"FAKE_STATUS": FAILED}, "failed", r"Kubernetes: JobSet scalebench-2-\w+ left no result \(FailedJobs: a job\)"),
    ({"FAKE_STATUS": FAILED, "FAKE_PODS": [DEAD]}, "oom", "Kubernetes: w-1 was OOMKilled"),
    ({"FAKE_STATUS": FAILED, "FAKE_PODS": [LATE]}, "timeout", "Kubernetes: w-0 ran out of its time limit"),
], ids=["refused", "deleted", "no result", "no memory", "no time"])  # fmt: skip
def test_a_jobset_without_a_result_is_a_row(variables, status, reason, kubectl, tmp_path, monkeypatch):
    for name, value in ({"PATH": f"{kubectl.parent}:{os.environ['PATH']}"} | variables).items():
        monkeypatch.setenv(name, value if isinstance(value, str) else json.dumps(value))
    hardware = HardwareSpec(
        "pods", devices="cpu", gpus_per_node=1, max_nodes=2, this_machine=False, scheduler="kubernetes"
    )
    run = RunRequest(0, resolve(simulated_config(gpus=2, hardware=hardware)), tmp_path / "0")
    follower = jobset_runs.JobSetFollower(lambda queue: None, print)
    ((_, result),) = follower.follow([PlannedJob(run.folder, [[run]])], ())
    assert result.status == status and re.fullmatch(reason, result.reason)
    assert (tmp_path / "state" / "deleted").read_text() == "secret\n"


def test_a_pod_that_the_leader_has_lost_is_explained_by_kubernetes(kubectl, tmp_path, monkeypatch, capsys):
    """The leader only sees that a connection ended, and its row comes first; here in a log that was rotated."""
    hardware = HardwareSpec("pods", devices="cpu", gpus_per_node=1, this_machine=False, scheduler="kubernetes")
    run = RunRequest(0, resolve(simulated_config(hardware=hardware)), tmp_path / "0")
    lost = write_result_for(run, RunOutcome("failed", f"w-1, with rank 0, {LOST}"))
    job_main.print_files(run, lost)
    for path in run.folder.iterdir():
        path.unlink()
    monkeypatch.setenv("PATH", f"{kubectl.parent}:{os.environ['PATH']}")
    logs = ["first\nsecond", capsys.readouterr().out]
    for name, value in {"STATUS": FAILED, "PODS": [DEAD], "LOG": logs}.items():
        monkeypatch.setenv(f"FAKE_{name}", json.dumps(value))
    follower = jobset_runs.JobSetFollower(lambda queue: None, print)
    ((_, result),) = follower.follow([PlannedJob(run.folder, [[run]])], ())
    assert (result.status, result.reason, result.run_id) == ("oom", "Kubernetes: w-1 was OOMKilled", lost.run_id)
    assert read_result(run.folder / "result.json") == result


def test_doctor_asks_the_cluster_for_jobset(kubectl, monkeypatch, capsys):
    for path, status, text in ((str(kubectl.parent), 0, "1 ok, 0 differ"), ("/nowhere", 1, "No such file")):
        monkeypatch.setenv("PATH", path)
        assert main(["doctor", "hardware=kubernetes"]) == status and text in capsys.readouterr().out
    monkeypatch.setenv("PATH", str(kubectl.parent))
    monkeypatch.setenv("FAKE_REFUSAL", "")
    assert Kubectl(None).find_problem() == "kubectl auth can-i create jobsets.jobset.x-k8s.io: no"


def test_without_kubectl_one_sentence_says_so(cluster, tmp_path):
    done = cluster(*SMALL, "strategy=simulated", "gpus=2", "hydra.run.dir=run", path=str(tmp_path))
    result = read_result(tmp_path / "run" / "result.json")
    assert result.status == "unsupported"
    assert "behind kubernetes), and this one has no GPU and no kubectl" in result.reason
    assert done.returncode == 1


def test_a_plan_prints_the_jobset_and_what_pods_cannot_do(cluster):
    words = ["strategy=ddp,horovod_mpi", "gpus=16", "measure.repeats=1", "baseline=none", "dry_run=true"]
    done = cluster("--multirun", "hardware.devices=cuda", *words, path="/nowhere")
    head, _, manifest = done.stdout.partition("apiVersion")
    jsonschema.validate(OmegaConf.to_container(OmegaConf.create(f"apiVersion{manifest}")), SCHEMA)
    assert "horovod_mpi is started by mpirun, which cannot start processes in pods" in " ".join(head.split())
    assert "there is no kubectl here" in head


@pytest.mark.slow
@pytest.mark.real
def test_ddp_trains_in_two_pods(cluster, tmp_path):
    done = cluster(*SMALL, "strategy=ddp_gloo", "gpus=2", "hydra.run.dir=run")
    result = read_result(tmp_path / "run" / "result.json")
    assert (result.status, result.reason, done.returncode) == ("ok", None, 0)
    assert result.scheduler.nodes == ["localhost", "127.0.0.1"] and result.scale.nodes == 2
    left = {path.name for path in (tmp_path / "run").iterdir() if path.is_file()}
    series = {"monitor.parquet", "monitor1.parquet"}  # beside other tests a monitor may end too late to write one
    assert left - series == {"job.json", "spec.json", "result.json"} and result.other_machines
    assert series <= left or "did not end within" in result.monitor.reason
