"""The operations page: what tables there are, who changed what, how the mirror does.

Guarantees:

- Nothing changes the catalog unless a token was set and the request has it.
- Whatever comes from tables or requests is shown as text: pages are built of escaped parts only,
  and the Content-Security-Policy lets no script run.
- Every page and answer is bounded, whatever the catalog holds.
"""

from deltalakedb.service.server import OperationsPage

__all__ = ["OperationsPage"]
