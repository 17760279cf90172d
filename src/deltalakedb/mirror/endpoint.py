"""An HTTP endpoint for Prometheus: the metrics of this process at `/metrics`, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.serving import PLAIN, Handler, Served, host_of, is_address, is_loopback

if TYPE_CHECKING:
    from deltalakedb.telemetry import Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsEndpoint(Served):
    """Serves while the block lasts. It binds to loopback unless it is told otherwise.

    There it answers by addresses and `localhost` only, so that no page of another site can read it
    by a name of its own that leads here.
    """

    def __init__(self, metrics: Metrics, *, port: int, host: str = "127.0.0.1") -> None:
        class Scraped(Handler):
            def do_GET(self) -> None:  # noqa: N802 - of the base
                asked = host_of(self.headers.get("Host", ""))
                if is_loopback(host) and not (asked == host or is_address(asked)):
                    self.answer(421, PLAIN, b"Ask by an address, such as 127.0.0.1\n")
                elif self.path.partition("?")[0] == "/metrics":
                    self.answer(200, CONTENT_TYPE, metrics.exposition().encode())
                else:
                    self.answer(404, PLAIN, b"Only /metrics is here\n")

        super().__init__("Metrics", Scraped, host=host, port=port)
        self.address += "/metrics"
