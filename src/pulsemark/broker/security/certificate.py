"""TLS client certificates: the role is the subject's common name.

The certificate was verified in the handshake (`tls`): a client without a trusted one has none here.
"""

from __future__ import annotations

from collections.abc import Mapping

from .authentication import Authenticated, AuthenticationFailed, PeerCertificate

__all__ = ["CertificateProvider"]


class CertificateProvider:
    """Pulsar's AuthenticationProviderTls."""

    method = "tls"
    is_slow = False

    def http_credentials(
        self, headers: Mapping[str, str], peer_certificate: PeerCertificate | None
    ) -> bytes | None:
        """Empty: the certificate is the credential."""
        return b"" if peer_certificate else None

    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None) -> Authenticated:
        """The last common name, which is the most specific one. Raises AuthenticationFailed."""
        if not peer_certificate:
            raise AuthenticationFailed(self.method, "the client has no trusted certificate")
        names = [
            value
            for attributes in peer_certificate.get("subject", ())
            for name, value in attributes
            if name == "commonName" and value.strip()
        ]
        if not names:
            raise AuthenticationFailed(self.method, "the certificate has no common name")
        return Authenticated(names[-1], None, self.method)
