"""Options of an object store, as Hadoop's connector for S3 has them.

They go to the scan that needs them, and not into the settings of the session, where everybody
would see them. Spark shows options of a scan in no plan. Hadoop keeps the client that it makes of
them, and uses it for whatever the process reads from that bucket later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from deltalakedb.errors import ConfigurationError, MissingDriverError, Option
from deltalakedb.spark.io.spark_internals import hadoop_version, has_file_system

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMES: Final = {
    "access_key_id": "fs.s3a.access.key",
    "secret_access_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
    "token": "fs.s3a.session.token",
    "endpoint": "fs.s3a.endpoint",
    "endpoint_url": "fs.s3a.endpoint",
    "region": "fs.s3a.endpoint.region",
    "default_region": "fs.s3a.endpoint.region",
}
_WITH_KEY: Final = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_WITH_TOKEN: Final = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"  # noqa: S105
_ANONYMOUS: Final = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"


_OPTIONS: Final = {
    "fs.s3a.access.key": "access_key_id",
    "fs.s3a.secret.key": "secret_access_key",
    "fs.s3a.session.token": "session_token",
    "fs.s3a.endpoint": "endpoint_url",
    "fs.s3a.endpoint.region": "region",
}
# What follows from the others.
_IMPLIED: Final = frozenset({"fs.s3a.connection.ssl.enabled", "fs.s3a.aws.credentials.provider"})


def storage_options_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of Hadoop, as users of Delta pass them, as options of an object store."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if name in _OPTIONS:
            found[_OPTIONS[name]] = value
        elif name == "fs.s3a.path.style.access":
            found["virtual_hosted_style_request"] = "false" if value == "true" else "true"
        elif name not in _IMPLIED:
            raise ConfigurationError(
                f"The setting {name!r} of Hadoop has no meaning here",
                why="Only these have: " + ", ".join([*_OPTIONS, "fs.s3a.path.style.access"]),
                fix=f"Pass {Option('storage_options')} instead",
            )
    endpoint = found.get("endpoint_url", "")
    plain = settings.get("fs.s3a.connection.ssl.enabled") == "false"
    if endpoint and "://" not in endpoint:
        found["endpoint_url"] = f"{'http' if plain else 'https'}://{endpoint}"
    if plain or endpoint.startswith("http:"):
        found["allow_http"] = "true"
    if settings.get("fs.s3a.aws.credentials.provider") == _ANONYMOUS:
        found["skip_signature"] = "true"
    return found


def require_connector(spark: SparkSession, location: str) -> None:
    """Refuse a table on S3 that Spark cannot read, before a query fails somewhere inside of it."""
    if urlsplit(location).scheme != "s3":
        return
    if not has_file_system(spark, "s3a"):
        raise MissingDriverError(
            f"Spark cannot read {location}: Hadoop's connector for S3 is not on its class path",
            fix="Start the session with spark.jars.packages="
            f"org.apache.hadoop:hadoop-aws:{hadoop_version(spark)}, or read without Spark: "
            "snapshot.to_arrow()",
        )


def hadoop_options(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """What Hadoop needs to read a table; nothing where it is not on S3, or no options are given.

    Without keys Hadoop finds credentials by itself, as the session is set up.
    """
    if urlsplit(location).scheme != "s3":
        return {}
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    made = {_NAMES[name]: value for name, value in given.items() if name in _NAMES}
    if "fs.s3a.session.token" in made:
        made["fs.s3a.aws.credentials.provider"] = _WITH_TOKEN
    elif "fs.s3a.access.key" in made:
        made["fs.s3a.aws.credentials.provider"] = _WITH_KEY
    elif given.get("skip_signature", "").lower() == "true":
        made["fs.s3a.aws.credentials.provider"] = _ANONYMOUS
    if "fs.s3a.endpoint" in made:
        hosted = given.get("virtual_hosted_style_request", "false").lower() == "true"
        made["fs.s3a.path.style.access"] = "false" if hosted else "true"
        plain = made["fs.s3a.endpoint"].startswith("http:")
        made["fs.s3a.connection.ssl.enabled"] = "false" if plain else "true"
    return made
