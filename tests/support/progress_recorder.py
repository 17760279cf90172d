"""A progress callback that records its calls."""


class ProgressRecorder:
    """Records (done, total) of every call, by the title of its phase."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[int, int]]] = {}

    def phase(self, title: str) -> None:
        self.calls[title] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls[[*self.calls][-1]].append((done, total))
