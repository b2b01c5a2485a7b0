"""A join token as text: where the chief is, its public key, and a secret key that was made for this token.

It is one word without characters that a shell or a chat would change: "dps1-", then base64 of both keys, a check of
what was copied, and the address.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

import zmq
from zmq.utils import z85

from dps.cluster.address import TOKEN_MARK, is_token, parse
from dps.errors import ConfigError, DpsError

try:
    from _blake2 import blake2s  # as `dps.actors.authorization` does
except ImportError:
    from hashlib import blake2s

_CHECK_NBYTES = 4
HINT = "copy the whole line that dps token has printed"


class JoinToken(NamedTuple):
    """The contents of a token. Keys are in Z85."""

    chief: str
    """Its address."""
    chief_key: bytes
    secret: bytes

    @property
    def public(self) -> bytes:
        """The public half of its key."""
        return zmq.curve_public(self.secret)

    def __str__(self) -> str:
        body = z85.decode(self.chief_key) + z85.decode(self.secret) + self.chief.encode()
        return TOKEN_MARK + base64.urlsafe_b64encode(_check(body) + body).decode().rstrip("=")

    def __repr__(self) -> str:
        return f"Token(chief={self.chief!r})"  # the secret stays out of logs and tracebacks


def parse_token(text: str) -> JoinToken:
    """The token of a text. Raises ConfigError, which does not show it, if it is none or was not copied as a whole."""
    text = text.strip()
    if not is_token(text):
        raise ConfigError(f"got a text of {len(text)} characters that is no join token; {HINT}")
    given = text.removeprefix(TOKEN_MARK)
    try:
        found = base64.b64decode(given + "=" * (-len(given) % 4), altchars=b"-_", validate=True)
        check, body = found[:_CHECK_NBYTES], found[_CHECK_NBYTES:]
        if len(body) <= 64 or check != _check(body):
            raise ValueError
        chief = body[64:].decode()
        parse(chief)
    except (ValueError, binascii.Error, DpsError):
        raise ConfigError(f"got a join token that is cut off or changed; {HINT}") from None
    return JoinToken(chief, z85.encode(body[:32]), z85.encode(body[32:64]))


def _check(body: bytes) -> bytes:
    return blake2s(body, digest_size=_CHECK_NBYTES).digest()
