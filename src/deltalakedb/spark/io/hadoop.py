"""Options of an object store, translated to settings of Hadoop's connector for S3.

They are options of one scan, and not settings of the session, where every user could read them.
Spark prints options of a scan in no plan. Hadoop caches the client that it creates with them, and
uses it for later reads of the process from that bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from deltalakedb.errors import ConfigurationError, MissingDriverError, Option
from deltalakedb.spark.io.spark_internals import hadoop_version, has_file_system

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
_SETTINGS: Final = {
    **{option: setting for setting, option in _OPTIONS.items()},
    "token": "fs.s3a.session.token",
    "endpoint": "fs.s3a.endpoint",
    "default_region": "fs.s3a.endpoint.region",
}
# Settings that follow from the others.
_IMPLIED: Final = frozenset({"fs.s3a.connection.ssl.enabled", "fs.s3a.aws.credentials.provider"})


def storage_options_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Translate settings of Hadoop, which users of Delta pass, to options of an object store."""
    options: dict[str, str] = {}
    for name, value in settings.items():
        if name in _OPTIONS:
            options[_OPTIONS[name]] = value
        elif name == "fs.s3a.path.style.access":
            options["virtual_hosted_style_request"] = "false" if value == "true" else "true"
        elif name not in _IMPLIED:
            raise ConfigurationError(
                f"The setting {name!r} of Hadoop is not supported",
                why="Supported are: " + ", ".join([*_OPTIONS, "fs.s3a.path.style.access"]),
                fix=f"Pass {Option('storage_options')} instead",
            )
    endpoint = options.get("endpoint_url", "")
    plain = settings.get("fs.s3a.connection.ssl.enabled") == "false"
    if endpoint and "://" not in endpoint:
        options["endpoint_url"] = f"{'http' if plain else 'https'}://{endpoint}"
    if plain or endpoint.startswith("http:"):
        options["allow_http"] = "true"
    if settings.get("fs.s3a.aws.credentials.provider") == _ANONYMOUS:
        options["skip_signature"] = "true"
    return options


def require_connector(spark: SparkSession, location: str) -> None:
    """Refuse a table on S3 if Spark has no connector for it, before a query fails."""
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
    """The settings of Hadoop to read a table on S3.

    Without keys, Hadoop looks for credentials as the session configures it.
    """
    if urlsplit(location).scheme != "s3":
        return {}
    known = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    settings = {_SETTINGS[name]: value for name, value in known.items() if name in _SETTINGS}
    if "fs.s3a.session.token" in settings:
        settings["fs.s3a.aws.credentials.provider"] = _WITH_TOKEN
    elif "fs.s3a.access.key" in settings:
        settings["fs.s3a.aws.credentials.provider"] = _WITH_KEY
    elif known.get("skip_signature", "").lower() == "true":
        settings["fs.s3a.aws.credentials.provider"] = _ANONYMOUS
    if "fs.s3a.endpoint" in settings:
        hosted = known.get("virtual_hosted_style_request", "false").lower() == "true"
        settings["fs.s3a.path.style.access"] = "false" if hosted else "true"
        plain = settings["fs.s3a.endpoint"].startswith("http:")
        settings["fs.s3a.connection.ssl.enabled"] = "false" if plain else "true"
    return settings
