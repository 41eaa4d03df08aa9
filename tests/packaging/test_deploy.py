"""The files of deploy/: valid for what reads them, and of options and metrics that there are.

Each check that needs a program or a package skips visibly where there is none.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from karat.cli.app import command

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and path.name != "README.md"]
NGINX_PLACES = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
METRIC = re.compile(r"\b((?:karat_|vllm:)[a-z0-9_]+)")


def metrics_of_a_server() -> set[str]:
    """Every name that /metrics can have, with endings."""
    from karat.server.metrics import Metrics

    metrics = Metrics("m")
    metrics.ended(metrics.tally([1]), "ok")
    app = (DEPLOY.parent / "src" / "karat" / "server" / "app.py").read_text(encoding="utf-8")
    gauges = dict.fromkeys(re.findall(r'"(karat_[a-z_]+)"', app), ("", 1.0))
    page = metrics.page(gauges).decode()
    return set(re.findall(r"^([a-z_:0-9]+)(?:\{|\s)", page, re.MULTILINE))


def test_the_table_lists_every_file() -> None:
    listed = (DEPLOY / "README.md").read_text(encoding="utf-8")
    assert len(FILES) >= 8
    for path in FILES:
        assert path.name in listed, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_options_are_those_of_serve(path: Path) -> None:
    known = {option for parameter in command().commands["serve"].params for option in parameter.opts}
    found = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", path.read_text(encoding="utf-8")))
    others = {"--shm-size", "--from", "--no-install-recommends"}
    assert found - others <= known, path


def test_every_metric_of_the_alerts_and_the_dashboard_is_there() -> None:
    pytest.importorskip("prometheus_client")
    known = metrics_of_a_server()
    assert {"karat_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", "vllm:num_requests_waiting"} <= known
    for path in (DEPLOY / "prometheus" / "alerts.yaml", DEPLOY / "grafana" / "karat.json"):
        named = set(METRIC.findall(path.read_text(encoding="utf-8")))
        assert len(named) > 5 and named <= known, (path, named - known)


@pytest.mark.parametrize("words", [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]])
def test_alerts(words: list[str]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here; it comes with Prometheus (Debian: apt install prometheus)")
    done = subprocess.run(
        [promtool, *words], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_metrics_page_is_what_prometheus_reads() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here; it comes with Prometheus (Debian: apt install prometheus)")
    from karat.server.metrics import Metrics

    page = Metrics("m").page({"karat_sequences_waiting": ("Waiting", 1.0), "karat_preemptions": ("So far", 2.0)})
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=120, check=False)
    assert done.returncode in (0, 3), done.stderr  # 3: advice on names, of vLLM's colons among others
    assert b"error" not in done.stderr.lower()


@pytest.mark.parametrize("name", ["karat.yaml", "autoscaling.yaml"])
def test_manifests(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="install requirements/deploy.txt for it")
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text(encoding="utf-8")))
    assert documents
    for document in documents:
        assert validate.validate(document, "1.31", strict=True)
        broken = json.loads(json.dumps(document))
        broken["spec"]["replicaz"] = 1
        with pytest.raises(validate.ValidationError):
            validate.validate(broken, "1.31", strict=True)


# Fields of KubeRay's v1 (its API reference) that a manifest may have, and those that it must have.
KUBERAY = {
    "RayService": ({"serveConfigV2", "rayClusterConfig", "upgradeStrategy", "suspend"}, set[str]()),
    "RayCluster": (
        {"authOptions", "rayVersion", "headGroupSpec", "workerGroupSpecs", "enableInTreeAutoscaling"},
        {"headGroupSpec"},
    ),
    "HeadGroup": ({"rayStartParams", "template", "serviceType", "resources", "labels"}, {"rayStartParams", "template"}),
    "WorkerGroup": (
        {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"},
        {"groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"},
    ),
}


def test_the_application_of_kuberay() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="install requirements/deploy.txt for it")
    yaml = pytest.importorskip("yaml")
    service, policy = yaml.safe_load_all((DEPLOY / "kubernetes" / "ray.yaml").read_text(encoding="utf-8"))
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    for name, found in zip(KUBERAY, (service["spec"], cluster, head, workers), strict=True):
        known, needed = KUBERAY[name]
        assert needed <= set(found) <= known, name
    assert cluster["authOptions"] == {"mode": "token"}
    assert all(isinstance(value, str) for group in (head, workers) for value in group["rayStartParams"].values())
    for group in (head, workers):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": group["template"]}
        assert validate.validate(pod, "1.31", strict=True)
        assert group["template"]["metadata"]["labels"] == policy["spec"]["podSelector"]["matchLabels"]
    assert validate.validate(policy, "1.31", strict=True)


def test_the_cluster_as_ray_s_autoscaler_reads_it() -> None:
    """Its own code for KubeRay's resources, which refuses what it cannot run by."""
    reading = pytest.importorskip("ray.autoscaler._private.kuberay.autoscaling_config", reason="Ray cannot be had here")
    yaml = pytest.importorskip("yaml")
    service, _ = yaml.safe_load_all((DEPLOY / "kubernetes" / "ray.yaml").read_text(encoding="utf-8"))
    metadata, spec = {"name": "karat", "namespace": "karat"}, service["spec"]["rayClusterConfig"]
    found = reading._derive_autoscaling_config_from_ray_cr({"metadata": metadata, "spec": spec})
    kinds = found["available_node_types"]
    head, workers = kinds[found["head_node_type"]], kinds["engines"]
    assert head["resources"]["CPU"] == 0, "no replica is beside what counts the others"
    assert (workers["resources"]["CPU"], workers["resources"]["memory"]) == (8, 16 << 30)
    assert (workers["min_workers"], workers["max_workers"], found["max_workers"]) == (2, 20, 20)


def test_the_application_of_serve() -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="Ray cannot be had here")
    yaml = pytest.importorskip("yaml")
    from karat.ray.arguments import arguments_of

    service, _ = yaml.safe_load_all((DEPLOY / "kubernetes" / "ray.yaml").read_text(encoding="utf-8"))
    deployed = schema.ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    (application,) = deployed.applications
    module, _, name = application.import_path.partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    made = arguments_of(application.args, 1)
    workers = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    pod = workers["template"]["spec"]
    assert (made.min_replicas, made.max_replicas) == (workers["minReplicas"], workers["maxReplicas"])
    assert str(made.cores) == pod["containers"][0]["resources"]["requests"]["cpu"], "a pod is one engine's"
    assert made.drain_s < pod["terminationGracePeriodSeconds"]


def as_written(value: Any) -> Any:
    """Plain JSON of an object of the SDK."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    return json.loads(JSONEncoder(sort_keys=True).encode(value))


def kept(wanted: Any, found: Any, path: str = "") -> list[str]:
    """Where `found` lacks something of `wanted`: what Grafana's types do not know is dropped by them."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return [path]
        return [line for key, value in wanted.items() for line in kept(value, found.get(key), f"{path}.{key}")]
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return [path]
        return [line for i, value in enumerate(wanted) for line in kept(value, found[i], f"{path}[{i}]")]
    return [] if wanted == found or (wanted in ("", False, 0) and found is None) else [path]


def test_the_dashboard_is_of_grafanas_types() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="install requirements/deploy.txt for it")
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    wanted = json.loads((DEPLOY / "grafana" / "karat.json").read_text(encoding="utf-8"))
    assert kept(wanted, as_written(Dashboard.from_json(wanted))) == []
    wanted["panels"][0]["titel"] = "x"
    assert kept(wanted, as_written(Dashboard.from_json(wanted))) == [".panels[0].titel"]


def test_the_dockerfile(tmp_path: Path) -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not here; install requirements/deploy.txt for it")
    file = DEPLOY / "docker" / "Dockerfile"

    def said(path: Path) -> tuple[int, str]:
        done = subprocess.run([hadolint, path], capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    assert said(file) == (0, "")
    broken = tmp_path / "Dockerfile"
    broken.write_text(file.read_text(encoding="utf-8").replace("--from=build", "--from=built"), encoding="utf-8")
    assert said(broken)[0] != 0


def test_nginx_reads_its_file(tmp_path: Path) -> None:
    programs = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    nginx, openssl = shutil.which("nginx", path=programs), shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("nginx or openssl is not here (Debian: apt install nginx openssl)")
    certificate, key = tmp_path / "karat.pem", tmp_path / "karat.key"
    made = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    made += ["-keyout", key, "-out", certificate, "-days", "1", "-subj", "/CN=karat.example"]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    site = (DEPLOY / "nginx" / "karat.conf").read_text(encoding="utf-8").replace("/etc/ssl", str(tmp_path))
    places = "".join(f"{name}_temp_path {tmp_path}/{name};" for name in NGINX_PLACES)

    def said(site: str) -> tuple[int, str]:
        whole = tmp_path / "nginx.conf"
        whole.write_text(f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ {places} {site} }}")
        run = [nginx, "-t", "-q", "-c", whole, "-p", tmp_path, "-e", "stderr"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    assert said(f"access_log off; {site}") == (0, "")
    code, why = said(site.replace("proxy_buffering off", "proxy_buffering of"))
    assert code != 0 and "proxy_buffering" in why


def test_panels_do_not_lie_on_each_other() -> None:
    panels = json.loads((DEPLOY / "grafana" / "karat.json").read_text(encoding="utf-8"))["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24


def test_the_unit() -> None:
    verify = shutil.which("systemd-analyze")
    unit = DEPLOY / "systemd" / "karat.service"
    sections = re.findall(r"^\[(\w+)\]$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == ["Unit", "Service", "Install"]
    if verify is None:
        pytest.skip("systemd-analyze is not here")
    done = subprocess.run([verify, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    ours = [line for line in done.stderr.splitlines() if "karat" in line and "is not executable" not in line]
    assert not ours, ours
