"""Who is told how far a piece of work is, and of which part of it."""

from deltalakedb.progress import Phases

from support.progress_recorder import ProgressRecorder


def _work(phases: Phases) -> None:
    phases(1, 2)
    phases.begin("Looking")
    phases(3)
    phases.begin("Doing", main=True)
    phases(1, 2)
    phases.begin("Tidying up")
    phases(9, 9)


def test_a_plain_function_hears_of_the_main_part() -> None:
    told: list[tuple[int, int]] = []
    _work(Phases(lambda *step: told.append(step)))
    assert told == [(1, 2)]


def test_who_listens_to_phases_hears_of_all() -> None:
    recorder = ProgressRecorder()
    phases = Phases(recorder)
    phases.begin("Beginning")
    _work(phases)
    assert recorder.calls == {
        "Beginning": [(1, 2)],
        "Looking": [(3, 0)],
        "Doing": [(1, 2)],
        "Tidying up": [(9, 9)],
    }


def test_nobody_has_to_listen() -> None:
    _work(Phases(None))
