"""A stand-in for kubectl and a cluster with JobSet: pods are processes of this machine, which have the commands and the
environment that a JobSet gives them, with the names of hosts and folders replaced. Its words and statuses are those of
kubectl 1.20, 1.27, 1.33 and 1.37 beside an API server."""

import base64
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["FAKE_KUBECTL"])
PORT = os.environ["FAKE_PORT"]
KINDS = {"Secret": "secret", "JobSet": "jobset.jobset.x-k8s.io"}
STATUS = json.loads(os.environ.get("FAKE_STATUS", "null"))  # of a JobSet that starts no pods


def start_pod(manifest, job, index, secret):
    """Start a pod in its folder; what it prints is its log."""
    name, number = manifest["metadata"]["name"], f"{job['name']}-0-{index}"
    container = job["template"]["spec"]["template"]["spec"]["containers"][0]
    folder = STATE / number
    folder.mkdir()
    (folder / "runs").write_bytes(base64.b64decode(secret["runs"]))

    def replace(text):
        for old, new in {
            f"{name}-leader-0-0.{name}": socket.gethostname(),
            f"{name}-workers-0-0.{name}": "localhost",
            f"{name}-workers-0-1.{name}": "127.0.0.1",
            "/etc/scalebench": str(folder),
            "/scalebench": str(folder),
            "29400": PORT,
        }.items():
            text = text.replace(old, new)
        return text

    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"]}
    for each in container["env"]:
        key = each.get("valueFrom", {}).get("secretKeyRef", {}).get("key")
        variables[each["name"]] = replace(each["value"]) if key is None else base64.b64decode(secret[key]).decode()
    python, *words = (replace(word.replace("$(JOB_COMPLETION_INDEX)", str(index))) for word in container["command"])
    assert python == "python3"
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, *words], env=variables, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    (folder / "pid").write_text(str(process.pid))


def is_over():
    """Whether the leader has ended, which was this process's child once."""
    stat = Path(f"/proc/{(STATE / 'leader-0-0' / 'pid').read_text()}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def main(verb, *words):
    if verb == "create":
        manifest = json.load(sys.stdin)
        (STATE / f"{manifest['kind']}.json").write_text(json.dumps(manifest))
        (STATE / "names").open("a").write(f"{KINDS[manifest['kind']]}/{manifest['metadata']['name']}\n")
        if manifest["kind"] == "JobSet" and "FAKE_REFUSAL" in os.environ:
            sys.exit(f"E1129 02:50:46.855 1 memcache.go:381] no list\n{os.environ['FAKE_REFUSAL']}")
        if manifest["kind"] == "JobSet" and STATUS is None:
            secret = json.loads((STATE / "Secret.json").read_text())["data"]
            for job in manifest["spec"]["replicatedJobs"]:
                for index in range(job["template"]["spec"]["completions"]):
                    start_pod(manifest, job, index, secret)
    elif verb == "logs" and "FAKE_LOG" in os.environ:
        log, *rest = json.loads((STATE / "logs").read_text() if (STATE / "logs").exists() else os.environ["FAKE_LOG"])
        (STATE / "logs").write_text(json.dumps(rest or [log]))
        print(log)
    elif verb == "logs" and STATUS is None:
        with open(STATE / "leader-0-0" / "log") as log:
            while True:
                ended = is_over()
                sys.stdout.write(log.read())
                sys.stdout.flush()
                if ended:
                    break
                time.sleep(0.1)
    elif verb == "auth":
        print("no" if "FAKE_REFUSAL" in os.environ else "yes")
        sys.exit("FAKE_REFUSAL" in os.environ)
    elif words == ("--raw", "/apis/jobset.x-k8s.io/v1alpha2"):
        print("{}")
    elif "--ignore-not-found" in words and verb == "get":
        print(
            "\n".join(name for name in (STATE / "names").read_text().split() if name == f"{KINDS['JobSet']}/{words[1]}")
        )
    elif verb == "get" and words[0] == "jobset" and STATUS == ["deleted"]:
        sys.exit(f'Error from server (NotFound): jobsets.jobset.x-k8s.io "{words[1]}" not found')
    elif verb == "get":
        pods = {"items": json.loads(os.environ.get("FAKE_PODS", "[]"))}
        print(json.dumps({"status": STATUS or {"terminalState": "Completed"}} if words[0] == "jobset" else pods))
    elif verb == "delete":
        (STATE / "deleted").open("a").write(f"{words[0]}\n")


main(*sys.argv[1:])
