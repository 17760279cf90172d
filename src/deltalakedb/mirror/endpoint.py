"""An HTTP endpoint for Prometheus: the metrics of this process at `/metrics`, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.serving import PLAIN, Handler, Served

if TYPE_CHECKING:
    from deltalakedb.telemetry import Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsEndpoint(Served):
    """Serves while the block lasts. It binds to loopback unless it is told otherwise."""

    def __init__(self, metrics: Metrics, *, port: int, host: str = "127.0.0.1") -> None:
        class Scraped(Handler):
            def do_GET(self) -> None:  # noqa: N802 - of the base
                if self.path.partition("?")[0] == "/metrics":
                    self.answer(200, CONTENT_TYPE, metrics.exposition().encode())
                else:
                    self.answer(404, PLAIN, b"Only /metrics is here\n")

        super().__init__("Metrics", Scraped, host=host, port=port)
        self.address += "/metrics"
