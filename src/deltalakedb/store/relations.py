"""The relations of the catalog as values: their names, columns and kinds of column.

This is the closed set of identifiers that SQL may be built from. A test compares it with the live
schema of every engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from deltalakedb.actions.order_keys import SLOTS

LIVE = 2**63 - 1
"""`removed_version` of a file that is still live."""


class Kind(Enum):
    """What a column means; each engine has its own type for it."""

    UUID = "uuid"
    TEXT = "text"
    INT = "int"
    BOOL = "bool"
    MAP = "map"  # a JSON object to query by; the protocol's maps hold strings and nulls only
    JSON = "json"  # a JSON document whose exact text matters
    LIST = "list"  # a list of strings
    BYTES = "bytes"
    STATE = "state"  # PENDING, FAILED, SUCCEEDED


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """A relation and its columns, in the order rows are written and read.

    There is one value for each relation, so identity is equality, and hashing is free.
    """

    name: str
    columns: tuple[str, ...]
    kinds: tuple[Kind, ...]


def _relation(name: str, columns: str) -> Relation:
    pairs = [column.split(":") for column in columns.split()]
    return Relation(name, tuple(p[0] for p in pairs), tuple(Kind(p[1]) for p in pairs))


TABLES = _relation(
    "dl_tables",
    "table_id:uuid name:text location:text protocol_min_reader:int protocol_min_writer:int "
    "properties:map created_at:int updated_at:int plan:text allowed_roots:text",
)
HEADS = _relation("dl_table_heads", "table_id:uuid current_version:int")
VERSIONS = _relation(
    "dl_table_versions",
    "table_id:uuid version:int committed_at:int committer:text operation:text "
    "operation_params:map operation_metrics:map commit_info:json commit_uuid:uuid "
    "transaction_id:uuid num_actions:int num_adds:int num_removes:int bytes_added:int "
    "bytes_removed:int live_files:int live_bytes:int recorded_at:int",
)
ADD_FILES = _relation(
    "dl_add_files",
    "table_id:uuid version:int path:text dv_id:text size_bytes:int modification_time:int "
    "data_change:bool partition_values:map stats:text tags:map deletion_vector:json "
    "base_row_id:int default_row_commit_version:int clustering_provider:text extra:json",
)
REMOVE_FILES = _relation(
    "dl_remove_files",
    "table_id:uuid version:int path:text dv_id:text deletion_timestamp:int data_change:bool "
    "extended_file_metadata:bool partition_values:map size_bytes:int stats:text tags:map "
    "deletion_vector:json base_row_id:int default_row_commit_version:int extra:json",
)
CDC_FILES = _relation(
    "dl_cdc_files",
    "table_id:uuid version:int path:text size_bytes:int data_change:bool partition_values:map "
    "tags:map extra:json",
)
METADATA_UPDATES = _relation(
    "dl_metadata_updates",
    "table_id:uuid version:int metadata_id:text name:text description:text format_provider:text "
    "format_options:map schema_json:json partition_columns:list table_properties:map "
    "created_time:int extra:json",
)
PROTOCOL_UPDATES = _relation(
    "dl_protocol_updates",
    "table_id:uuid version:int min_reader_version:int min_writer_version:int "
    "reader_features:list writer_features:list extra:json",
)
TXN_ACTIONS = _relation(
    "dl_txn_actions",
    "table_id:uuid version:int app_id:text txn_version:int last_update:int extra:json",
)
DOMAIN_METADATA = _relation(
    "dl_domain_metadata",
    "table_id:uuid version:int domain:text configuration:text removed:bool extra:json",
)
OTHER_ACTIONS = _relation("dl_other_actions", "table_id:uuid version:int ordinal:int action:json")
_ACTIVE_FILES = (
    "table_id:uuid path:text dv_id:text added_version:int removed_version:int size_bytes:int "
    "modification_time:int data_change:bool partition_values:map stats:text tags:map "
    "deletion_vector:json base_row_id:int default_row_commit_version:int "
    "clustering_provider:text extra:json"
)
UNPLANNED_FILES = _relation("dl_active_files", _ACTIVE_FILES)
"""Rows of dl_active_files without keys: those of a table without planned columns."""
ACTIVE_FILES = _relation(
    "dl_active_files",
    _ACTIVE_FILES
    + "".join(f" key{n}_width:int key{n}_low:int key{n}_high:int" for n in range(1, SLOTS + 1)),
)
MIRROR_STATUS = _relation(
    "dl_mirror_status",
    "table_id:uuid version:int status:state attempts:int last_error:text digest:text "
    "payload:bytes payload_bytes:int next_attempt_at:int created_at:int updated_at:int "
    "error_kind:text",
)
MIRROR_TABLES = _relation(
    "dl_mirror_tables",
    "table_id:uuid owner:text generation:int expires_at:int checkpoint_version:int "
    "checkpoint_error:text cleaned_at:int drift:json updated_at:int",
)
EXPORTED_TABLES = _relation(
    "dl_exported_tables", "table_id:uuid name:text location:text version:int exported_at:int"
)

FILE_PAGES = _relation(
    "dl_file_pages",
    "table_id:uuid page_id:int valid_from:int valid_to:int num_files:int files:bytes "
    "removed:bytes stats:bytes",
)
PAGE_COLUMNS = _relation(
    "dl_page_columns",
    "table_id:uuid column_key:text page_id:int type:text low:int high:int bounds:bytes",
)
PAGE_TEXTS = _relation("dl_page_texts", "table_id:uuid group_id:int paths:bytes stats:bytes")
PAGED_TABLES = _relation("dl_paged_tables", "table_id:uuid version:int next_page:int")
IMPORT_STAGES = _relation(
    "dl_import_stages",
    "table_id:uuid stage:int location:text next_version:int fingerprint:text commits:bytes "
    "created_at:int",
)

SETTINGS = _relation("dl_settings", "key:text value:text updated_at:int")
"""Of the catalog itself; its rows belong to no table."""

ACTION_RELATIONS = (
    PROTOCOL_UPDATES,
    METADATA_UPDATES,
    DOMAIN_METADATA,
    TXN_ACTIONS,
    REMOVE_FILES,
    ADD_FILES,
    CDC_FILES,
    OTHER_ACTIONS,
)
"""The ledger: one relation per kind of action, keyed by table and version."""

RELATIONS = (
    TABLES,
    HEADS,
    VERSIONS,
    *ACTION_RELATIONS,
    ACTIVE_FILES,
    MIRROR_STATUS,
    MIRROR_TABLES,
    FILE_PAGES,
    PAGE_COLUMNS,
    PAGE_TEXTS,
    PAGED_TABLES,
    EXPORTED_TABLES,
    IMPORT_STAGES,
)
"""The relations of tables: each row belongs to one, by its `table_id`."""
