"""app: an application of Ray Serve, for `serve run karat.ray:app model=/models/model.gguf` and YAML files."""

from collections.abc import Mapping
from typing import Any

import msgspec

from karat.machine.cores import num_physical_cores
from karat.ray.arguments import Arguments, arguments_of
from karat.ray.memory import memory_of_engine

_MANY = 100_000  # calls of a deployment: what waits, waits in the engine's queue
_HEALTH = {"health_check_period_s": 2, "health_check_timeout_s": 10}
_LOOK_S = 0.5  # how often one that has to go looks whether its calls have ended


def app(given: Mapping[str, Any]) -> Any:
    """The application of these arguments (karat.ray.arguments.Arguments): an ingress, and replicas with an engine each.

    UsageError for arguments that make none.
    """
    from ray import serve  # half a second, which who has a batch computed need not wait

    from karat.ray.ingress import Ingress
    from karat.ray.replica import Replica

    arguments = arguments_of(given, num_physical_cores())
    replicas = serve.deployment(
        Replica,
        name="Replica",
        ray_actor_options={"num_cpus": arguments.cores, "memory": memory_of_engine(arguments.model, arguments.options)},
        max_ongoing_requests=_MANY,
        graceful_shutdown_timeout_s=arguments.drain_s,
        graceful_shutdown_wait_loop_s=_LOOK_S,
        request_router_config=_router(arguments),
        **_number(arguments),
        **_HEALTH,
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="Ingress",
        num_replicas=arguments.ingresses,
        ray_actor_options={"num_cpus": 0},  # it does little beside an engine, and none of it may wait for a core
        max_ongoing_requests=_MANY,
        graceful_shutdown_timeout_s=arguments.drain_s,
        graceful_shutdown_wait_loop_s=_LOOK_S,
        max_surge_percent=100,  # where all are to be others: the new ones come before the old ones go
        **_HEALTH,
    )
    encode = msgspec.msgpack.encode
    return ingress.bind(encode(arguments), replicas.bind(encode(arguments.of_replica())))


def _router(arguments: Arguments) -> Any:
    from ray.serve.config import RequestRouterConfig

    return RequestRouterConfig(
        request_router_class="karat.ray.router.PrefixRouter",
        request_router_kwargs={"slack_tokens": arguments.slack_tokens},
    )


def _number(arguments: Arguments) -> dict[str, Any]:
    """Of replicas: one number, or bounds between which it follows the load."""
    if arguments.most_replicas == arguments.min_replicas:
        return {"num_replicas": arguments.min_replicas}
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    wanted = {"tokens_each": arguments.queued_tokens, "places": arguments.places}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=arguments.min_replicas,
            max_replicas=arguments.most_replicas,
            upscale_delay_s=arguments.upscale_delay_s,
            downscale_delay_s=arguments.downscale_delay_s,
            policy=AutoscalingPolicy(policy_function="karat.ray.scaling.ByQueuedTokens", policy_kwargs=wanted),
        )
    }
