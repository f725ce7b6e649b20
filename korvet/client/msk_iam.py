"""Tokens for Amazon MSK's access control by IAM: signed URLs, which its brokers accept as tokens of OAUTHBEARER.

A token is the URL of the action kafka-cluster:Connect, signed by botocore (Signature Version 4), in base64url. botocore
also finds and renews the credentials: of the environment, of files, or of the machine's role.
"""

from __future__ import annotations

import base64
import os
import re
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from attrs import frozen

from korvet import __version__
from korvet.client.token_endpoint import TokenRefused

if TYPE_CHECKING:
    from botocore.session import Session

SERVICE = "kafka-cluster"
ACTION = "kafka-cluster:Connect"
EXPIRES_S = 900
# b-1.name.abc.c1.kafka.eu-west-1.amazonaws.com, boot-abc.c1.kafka-serverless.eu-west-1.amazonaws.com
HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")
AGENT = f"korvet/{__version__}"


@frozen
class AwsLogin:
    """A login with AWS's credentials: those of a profile, or the default ones."""

    profile: str = ""


def signed_token(login: AwsLogin, broker: str) -> str:
    """Return a token for a broker, given by its address. Blocks. Raises TokenRefused."""
    from botocore.auth import SigV4QueryAuth  # noqa: PLC0415  needs extra `msk`
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    try:
        session = session_of(login.profile)
        region = region_of(broker, session)
        credentials = session.get_credentials()
        if credentials is None:
            raise TokenRefused(
                "there are no AWS credentials in the environment, in files, or for this machine"
            )
        signer = SigV4QueryAuth(credentials.get_frozen_credentials(), SERVICE, region, EXPIRES_S)
        request = AWSRequest("GET", f"https://kafka.{region}.amazonaws.com/", params={"Action": ACTION})
        signer.add_auth(request)
    except BotoCoreError as error:
        raise TokenRefused(f"AWS credentials: {error}") from None
    url = f"{request.url}&User-Agent={quote(AGENT, safe='')}"
    return base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


@cache
def session_of(profile: str) -> Session:
    """Return botocore's session of a profile, which keeps the credentials until they expire."""
    from botocore.session import Session  # noqa: PLC0415  as above

    return Session(profile=profile or None)


def region_of(broker: str, session: Session) -> str:
    """Return the region in a broker's name, or else that of the environment or the profile. Raises TokenRefused."""
    if match := HOST.search(broker):
        return match[1]
    region = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    if not region:
        raise TokenRefused(f"the name of {broker} has no AWS region; AWS_REGION or the profile must have it")
    return str(region)
