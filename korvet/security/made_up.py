"""Credentials of users that do not exist, for logins: they do not show that the user does not exist.

A made-up credential takes the iterations, and the form and length of the salt, from a known user, which a hash of the
two names chooses. So both are distributed as those of the known users. They are the same for each login, on all
brokers of a store, and when users are added or removed, only the unknown names that had chosen one of them change.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from attrs import frozen

from korvet.security.scram import FEWEST_ITERATIONS, SALT_BITS, ScramCredential, ScramMechanism, salt_of

#: Limit of the known users that made-up credentials resemble.
MOST_MODELS = 100

Credentials = Mapping[ScramMechanism, ScramCredential]


@frozen
class Model:
    """The facts of a known user's credential that a client learns."""

    username: str
    iterations: int = FEWEST_ITERATIONS
    salt_bytes: int = 0  # 0 for a salt in the form of Kafka's clients


Models = Mapping[ScramMechanism, Sequence[Model]]


def models_of(known: Mapping[str, Credentials]) -> Models:
    """Return the models of each mechanism."""
    return {
        mechanism: [
            Model(name, credential.iterations, 0 if _is_kafkas(credential.salt) else len(credential.salt))
            for name, credentials in known.items()
            if (credential := credentials.get(mechanism)) is not None
        ]
        for mechanism in ScramMechanism
    }


def chosen_names(secret: bytes, names: Sequence[str]) -> Sequence[str]:
    """Return the names of the known users that become models: all, or a sample that hardly changes."""
    if len(names) <= MOST_MODELS:
        return names
    return sorted(names, key=lambda name: _hash(secret, "model", name))[:MOST_MODELS]


def made_up(secret: bytes, username: str, mechanism: ScramMechanism, models: Models) -> ScramCredential:
    """Return the credential, which depends on the store's secret, so that clients cannot compute it."""

    def derived(purpose: str) -> bytes:
        return hmac.digest(secret, f"{purpose} {mechanism.sasl_name} {username}".encode(), mechanism.digest)

    model = min(
        models.get(mechanism, ()),
        key=lambda each: _hash(secret, f"{mechanism.sasl_name} {username}", each.username),
        default=Model(""),
    )
    number = int.from_bytes(derived("salt"), "big")
    salt = salt_of(number % 2**SALT_BITS)
    if model.salt_bytes:
        count = -(-model.salt_bytes // 32)
        salt = b"".join(derived(f"salt {index}") for index in range(count))[: model.salt_bytes]
    return ScramCredential(salt, derived("stored key"), derived("server key"), model.iterations)


def _is_kafkas(salt: bytes) -> bool:
    return 20 <= len(salt) <= 26 and salt.isalnum() and salt == salt.lower()


def _hash(secret: bytes, one: str, other: str) -> bytes:
    return hmac.digest(secret, f"{one}\0{other}".encode(), "sha256")
