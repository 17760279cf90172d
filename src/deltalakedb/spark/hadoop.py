"""Options of an object store, as Hadoop's connector for S3 has them.

They go to the one scan that needs them, and not into the settings of the session, where everybody
would see and use them. Spark shows options of a scan in no plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

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
