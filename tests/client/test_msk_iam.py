"""Tokens for Amazon MSK: signed URLs. The test computes the signature by AWS's description, without botocore."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from attrs import define, field

from korvet.client import open_client
from korvet.client.authentication import NotAuthenticated
from korvet.client.msk_iam import AGENT, AwsLogin, session_of, signed_token
from korvet.client.security import CLIENT_HANDLER, MSK_HANDLER, Sasl, Security, security_of
from korvet.client.token_endpoint import TokenRefused
from korvet.protocol.errors import ErrorCode, UnsupportedSaslMechanism
from korvet.protocol.messages import sasl_authenticate, sasl_handshake
from tests.client.secured_cluster import SecuredCluster, serving

BROKER = "b-1.orders.abc123.c2.kafka.eu-central-1.amazonaws.com:9098"
KEY_ID, SECRET = "AKIDEXAMPLE", "hush/+é"
IAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"}
MODULE = "software.amazon.msk.auth.iam.IAMLoginModule"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """An environment with AWS's credentials, and without those of the machine."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    session_of.cache_clear()
    yield monkeypatch
    session_of.cache_clear()


def url_of(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def query_of(token: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url_of(token)).query, strict_parsing=True))


def signature(url: str, secret: str) -> str:
    """The signature of a presigned GET request (Signature Version 4)."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    _, day, region, service, end = query["X-Amz-Credential"].split("/")
    signed = sorted(
        (name, value) for name, value in query.items() if name not in ("X-Amz-Signature", "User-Agent")
    )
    lines = [
        "GET",
        parts.path,
        "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in signed),
        f"host:{parts.netloc}",
        "",
        "host",
        hashlib.sha256(b"").hexdigest(),
    ]
    request = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    scope = f"{day}/{region}/{service}/{end}"
    key = f"AWS4{secret}".encode()
    for step in (day, region, service, end, f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{request}"):
        key = hmac.digest(key, step.encode(), "sha256")
    return key.hex()


def test_token_is_a_signed_url_of_the_action_connect() -> None:
    token = signed_token(AwsLogin(), BROKER)

    url, query = url_of(token), query_of(token)
    assert "=" not in token
    assert ("https", "kafka.eu-central-1.amazonaws.com", "/") == urlsplit(url)[:3]
    day = query["X-Amz-Date"][:8]
    assert {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{KEY_ID}/{day}/eu-central-1/kafka-cluster/aws4_request",
        "X-Amz-Date": query["X-Amz-Date"],
        "X-Amz-Expires": "900",
        "X-Amz-SignedHeaders": "host",
        "X-Amz-Signature": signature(url, SECRET),
        "User-Agent": AGENT,
    } == query
    assert "User-Agent" == list(query)[-1]
    assert "hush" not in url


def test_temporary_credentials_have_their_session_in_the_token(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_SESSION_TOKEN", "a/b+c==")

    token = signed_token(AwsLogin(), BROKER)

    assert "a/b+c==" == query_of(token)["X-Amz-Security-Token"]
    assert signature(url_of(token), SECRET) == query_of(token)["X-Amz-Signature"]


def test_credentials_and_region_are_those_of_the_profile(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[lake]\naws_access_key_id = OTHER\naws_secret_access_key = quiet\n"
    )
    (tmp_path / "config").write_text("[profile lake]\nregion = us-west-2\n")

    token = signed_token(AwsLogin("lake"), "kafka.example:9098")

    assert "OTHER/" in query_of(token)["X-Amz-Credential"]
    assert "kafka.us-west-2.amazonaws.com" == urlsplit(url_of(token)).netloc
    assert signature(url_of(token), "quiet") == query_of(token)["X-Amz-Signature"]


@pytest.mark.parametrize(
    "broker, variable, region",
    [
        ("boot-x.c1.kafka-serverless.ap-southeast-2.amazonaws.com:9098", "us-east-1", "ap-southeast-2"),
        ("b-2-public.orders.abc.c3.kafka.us-gov-west-1.amazonaws.com:9198", "", "us-gov-west-1"),
        ("kafka.example:9098", "us-east-1", "us-east-1"),
    ],
    ids=["serverless", "public", "other"],
)
def test_region_is_that_of_the_broker_or_of_the_environment(
    environment: pytest.MonkeyPatch, broker: str, variable: str, region: str
) -> None:
    environment.setenv("AWS_REGION", variable)

    assert f"/{region}/kafka-cluster/" in query_of(signed_token(AwsLogin(), broker))["X-Amz-Credential"]


def test_missing_region_credentials_and_profile_are_named(environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(TokenRefused, match="the name of kafka.example:9098 has no AWS region; AWS_REGION or"):
        signed_token(AwsLogin(), "kafka.example:9098")
    with pytest.raises(TokenRefused, match=r"AWS credentials: .*profile \(none\) could not be found"):
        signed_token(AwsLogin("none"), BROKER)
    session_of.cache_clear()
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(
        TokenRefused, match="there are no AWS credentials in the environment, in files, or for"
    ):
        signed_token(AwsLogin(), BROKER)


# --- Settings and connections -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, profile",
    [
        ({}, ""),
        ({"sasl.jaas.config": f"{MODULE} required;", CLIENT_HANDLER: MSK_HANDLER}, ""),
        (
            {"sasl.jaas.config": f'{MODULE} required awsProfileName="my \\"lake\\"" awsDebugCreds="true";'},
            'my "lake"',
        ),
    ],
    ids=["alone", "java", "profile"],
)
def test_settings_of_java_clients_are_accepted(settings: dict[str, str], profile: str) -> None:
    found = security_of({**IAM, **settings})

    assert Sasl("AWS_MSK_IAM", aws=AwsLogin(profile)) == found.sasl
    assert found == security_of(found.settings())


@pytest.mark.parametrize(
    "settings, fault",
    [
        (
            {"sasl.jaas.config": f'{MODULE} required awsRoleArn="arn:x";'},
            "sasl.jaas.config has awsRoleArn; accepted is awsProfileName, of a profile with role_arn",
        ),
        (
            {"sasl.jaas.config": 'a.PlainLoginModule required username="x";'},
            "AWS_MSK_IAM takes IAMLoginModule",
        ),
        (
            {CLIENT_HANDLER: "a.Handler"},
            "names a.Handler, which only Java runs; accepted is software.amazon.msk",
        ),
    ],
    ids=["role", "module", "handler"],
)
def test_settings_that_only_java_has_are_refused(settings: dict[str, str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        security_of({**IAM, **settings})


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.client.security.find_spec", lambda _: None)

    with pytest.raises(
        ValueError, match=r"sasl.mechanism is 'AWS_MSK_IAM', which requires: pip install 'korvet\[msk\]'"
    ):
        security_of(IAM)


@define(eq=False)
class TokenCluster(SecuredCluster):
    """Brokers that accept tokens of OAUTHBEARER with the right signature."""

    offered: str = "OAUTHBEARER"
    tokens: list[str] = field(factory=list)

    async def on_sasl_handshake(self, body: sasl_handshake.SaslHandshakeRequest, _: int, __: int) -> object:
        is_offered = body.mechanism == self.offered
        code = ErrorCode.NONE if is_offered else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return sasl_handshake.SaslHandshakeResponse(error_code=code, mechanisms=[self.offered])

    async def on_sasl_authenticate(
        self, body: sasl_authenticate.SaslAuthenticateRequest, _: int, __: int
    ) -> object:
        token = bytes(body.auth_bytes).decode().removeprefix("n,,\x01auth=Bearer ").removesuffix("\x01\x01")
        self.tokens.append(token)
        is_right = query_of(token)["X-Amz-Signature"] == signature(url_of(token), SECRET)
        self.logins += is_right
        return sasl_authenticate.SaslAuthenticateResponse(
            error_code=0 if is_right else ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=None if is_right else "Access denied",
            auth_bytes=b"",
        )


MSK = Security(sasl=Sasl("AWS_MSK_IAM", aws=AwsLogin()))


async def test_client_logs_in_with_a_token(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_REGION", "eu-west-1")
    async with (
        serving(TokenCluster, users={"iam": ""}) as cluster,
        open_client(cluster.bootstrap, security=MSK) as client,
    ):
        assert "fake" == client.cluster_id
        assert [AGENT] == [query_of(each)["User-Agent"] for each in cluster.tokens]


async def test_refusals_are_errors_of_one_line(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    async with serving(TokenCluster, users={"iam": ""}) as cluster:
        with pytest.raises(NotAuthenticated, match="has no AWS region"):
            await connected(cluster)
        environment.setenv("AWS_REGION", "eu-west-1")
        with pytest.raises(
            NotAuthenticated, match=r"does not accept the login \(AWS_MSK_IAM\): Access denied"
        ):
            await connected(cluster)
        cluster.offered = "PLAIN"
        with pytest.raises(UnsupportedSaslMechanism, match="does not offer OAUTHBEARER; it offers PLAIN"):
            await connected(cluster)


async def connected(cluster: TokenCluster) -> None:
    async with open_client(cluster.bootstrap, security=MSK):
        pass
