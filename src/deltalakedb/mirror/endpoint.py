"""An HTTP endpoint for Prometheus: the metrics of this process at `/metrics`, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.asgi import KnownHosts, Server, is_loopback

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from deltalakedb.telemetry import Metrics


class MetricsEndpoint(Server):
    """Serves metrics for the length of a block. It binds to loopback by default.

    There it answers by addresses and `localhost` only, so that no page of another site can read it
    by a host name of its own.
    """

    def __init__(self, metrics: Metrics, *, port: int, host: str = "127.0.0.1") -> None:
        from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route

        def exposition(_: Request) -> Response:
            return PlainTextResponse(metrics.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

        async def unknown_host(_: Request) -> Response:
            return PlainTextResponse("Ask by an address, such as 127.0.0.1\n", 421)

        hosts = Middleware(KnownHosts, names=frozenset({host.lower()}), refusal=unknown_host)
        app = Starlette(
            routes=[Route("/metrics", exposition)], middleware=[hosts] if is_loopback(host) else []
        )
        super().__init__("Metrics", app, host=host, port=port)
        self.address += "/metrics"
