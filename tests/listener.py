"""Somebody who wants to know how far a long piece of work is."""


class Listener:
    """What was told of each phase, by its title."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[int, int]]] = {}

    def phase(self, title: str) -> None:
        self.told[title] = []

    def __call__(self, done: int, total: int) -> None:
        self.told[[*self.told][-1]].append((done, total))
