"""One ASGI application over a lake: the operations page, its JSON API, metrics for Prometheus.

Guarantees:

- Nothing changes the catalog unless a token was set and the request has it.
- Names and texts of tables and requests are escaped, and the Content-Security-Policy lets no script
  run.
- Every page and answer is bounded, whatever the catalog holds.
"""

import deltalakedb.asgi  # noqa: F401 - its error names the extra, where that is not installed
from deltalakedb.service.app import OperationsPage, application

__all__ = ["OperationsPage", "application"]
