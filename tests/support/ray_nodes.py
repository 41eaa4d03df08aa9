"""A cluster of Ray on this machine, whose nodes start on a busy machine too."""

import os
import random
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

_SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(16),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "240",
    "RAY_worker_niceness": "0",  # 15 unless it is said: beside other tests workers would get nothing
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}
for _name, _value in _SETTINGS.items():  # Ray reads them when it is imported
    os.environ.setdefault(_name, _value)
_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
_OWN_PORTS = range(20_000, 30_000)  # below those that Linux and macOS give to connections
_STORE_BYTES = 100 << 20  # of shared memory, of which nothing here needs much


def _bound(free: socket.socket) -> int:
    """A port of all addresses, to which this socket is bound."""
    for port in random.sample(_OWN_PORTS, len(_OWN_PORTS)):
        with suppress(OSError):
            free.bind(("", port))
            return port
    raise OSError(f"no free port of {_OWN_PORTS.start} to {_OWN_PORTS.stop - 1}")


def start_node(nodes: Any, num_cpus: int) -> Any:
    """Add a node to a cluster of ray.cluster_utils.

    The ports of its agents are stated. For one that an agent chooses, Ray waits 15 seconds and ends, and on a busy
    machine it takes an agent longer to start. One of them Ray tells the agent alone, and waits for it all the same.
    They are no ports that the system gives to who asks for any, as every connection does: until an agent has started,
    nothing keeps them for it.
    """
    from ray._private import ray_constants, services

    start = services.start_ray_process
    with ExitStack() as stack:
        ports = {name: _bound(stack.enter_context(socket.socket())) for name in _PORTS}

    def telling(command: list[str], kind: str, *arguments: Any, **options: Any) -> Any:
        if kind == ray_constants.PROCESS_TYPE_RAYLET:
            command = [*command, f"--dashboard_agent_listen_port={ports['dashboard_agent_listen_port']}"]
        return start(command, kind, *arguments, **options)

    with patch.object(services, "start_ray_process", telling):
        return nodes.add_node(num_cpus=num_cpus, include_dashboard=False, object_store_memory=_STORE_BYTES, **ports)


def processes(title: str) -> list[int]:
    """Processes of this process' clusters whose title begins so."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if (folder / "cmdline").read_bytes().startswith(title.encode()) and _is_ours(int(folder.name)):
                found.append(int(folder.name))
    return found


def _is_ours(pid: int) -> bool:
    """Whether it is a child of this process, or of a child, and so on."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()


def lost_after(nodes: Any) -> list[int]:
    """How many tokens each stream had that lost its replica, as the ingresses of this cluster have logged it."""
    logs = Path(nodes.head_node.get_session_dir_path()) / "logs"
    said = "".join(path.read_text(errors="replace") for path in logs.glob("worker-*.err"))
    return [int(number) for number in re.findall(r"is lost after (\d+) tokens", said)]


@contextmanager
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes with a core each. This process is connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        for _ in range(2):
            start_node(nodes, 1)
        ray.init(address=nodes.address, log_to_driver=False)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
