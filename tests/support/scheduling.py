"""The order in which processes of a parallel run take modules of tests.

A Java virtual machine costs twenty seconds of a core until it is warm, and tests/spark and
tests/interop keep one each for a whole session. So one process prefers the modules of tests/spark,
another those of tests/interop, and all others take them only when nothing else is left.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_ROOMS = ("tests/spark/", "tests/interop/")


def room_of(scope: str) -> str:
    """The folder of those with a virtual machine of their own that a module is in, or nothing."""
    return next((room for room in _ROOMS if scope.startswith(room)), "")


def next_scope(scopes: list[str], process: int, processes: int) -> str:
    """The module that a process takes next, of those that are left, in their order."""
    own = _ROOMS[process] if process < len(_ROOMS) and processes > len(_ROOMS) else ""
    order = [own, "", *reversed(_ROOMS)]
    return min(scopes, key=lambda scope: order.index(room_of(scope)))


class RoomScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """As `--dist loadscope`, with the order of `next_scope`."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = next_scope([*self.workqueue], self.nodes.index(node), len(self.nodes))
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> RoomScheduling | None:
    """Replace the scheduler of `--dist loadscope`."""
    return RoomScheduling(config, log) if config.option.dist == "loadscope" else None
