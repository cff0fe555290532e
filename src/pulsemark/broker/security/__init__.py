"""Authentication, authorization and TLS."""
