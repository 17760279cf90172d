"""A table leaves the catalog and is an ordinary Delta table from then on.

Guarantees:

- Until the last step the table is in the catalog as before, and everybody may commit to it. A
  commit that comes in between is published and checkpointed too; after the last step commits are
  refused with TableExportedError.
- Every step can be done again: an export that was broken off is completed by the next one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltalakedb.actions.features import writer_features
from deltalakedb.errors import (
    CommitConflictError,
    CommitRejectedError,
    MirrorError,
    Option,
    UnsupportedFeatureError,
)
from deltalakedb.mirror import export
from deltalakedb.mirror.publish import Storages
from deltalakedb.operations.drop_features import drop_features as features_to_drop
from deltalakedb.progress import Phases, Progress
from deltalakedb.store.table_lookup import not_registered
from deltalakedb.store.versions import domain_metadata
from deltalakedb.telemetry import span
from deltalakedb.transaction.commit import load_state

if TYPE_CHECKING:
    from deltalakedb.mirror.export import Exported
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.transaction.commit import Commit, TableState
    from deltalakedb.transaction.committer import Committer

# How often other commits may come before the end is reached.
_ROUNDS: Final = 20


def export_table(
    store: Store,
    committer: Committer,
    table: TableRecord,
    *,
    drop_features: bool,
    verify: bool,
    progress: Progress | None = None,
) -> Exported:
    """Publish, verify, checkpoint and unregister a table."""
    phases = Phases(progress)
    storages = Storages(store.storage_options)
    storage = storages.at(table.location)
    dropped: set[str] = set()
    verified = not verify
    with span("deltalakedb.export", table=table.name):
        for _ in range(_ROUNDS):
            phases.begin("Publishing versions")
            version = export.publish_all(store, storages, table)
            if not verified:
                export.check_log(store, storage, table, progress=progress)
                verified = True
            state, commit = _look(store, table, version)
            if drop_features and commit is not None:
                dropped |= _drop(committer, commit, state)
                continue
            phases.begin("Writing the last checkpoint")
            export.complete_log(store, storage, table, version)
            done = export.unregister(store, table, version)
            if done is not None:
                return replace(
                    export.exported(done),
                    dropped_features=tuple(sorted(dropped)),
                    features=tuple(sorted(writer_features(state.protocol))),
                )
    raise MirrorError(
        f"Table {table.name!r} cannot be exported",
        why=f"other writers committed to it each time before it was complete, {_ROUNDS} times. "
        "It is still in the catalog",
        fix="Stop the writers, and try again",
    )


def _look(store: Store, table: TableRecord, version: int) -> tuple[TableState, Commit | None]:
    """A table at a version, and the commit that would make it ordinary."""
    with store.read() as session:
        if store.head(session, table.table_id) is None:
            raise not_registered(session, table)
        state = load_state(store, session, table.table_id, version)
        domains = domain_metadata(session, table.table_id, version)
    return state, features_to_drop(table, state, domains)


def _drop(committer: Committer, commit: Commit, state: TableState) -> set[str]:
    """Drop what the table can do without; the features that went, none if others were faster."""
    try:
        # This loop publishes it.
        (done,) = committer.commit([commit], notify=False)
    except CommitConflictError:
        return set()
    except (CommitRejectedError, UnsupportedFeatureError) as error:
        raise MirrorError(
            f"Table {commit.table.name!r} cannot be exported without the features that other "
            "writers may not know",
            why=f"{error.what}: {error.why}. It is still in the catalog",
            fix=f"Keep them: {Option('drop_features', value=False)}",
        ) from error
    after = state.protocol if done.state is None else done.state.protocol
    return set(writer_features(state.protocol) - writer_features(after))
