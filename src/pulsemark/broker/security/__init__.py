"""Who a client is: authentication, TLS."""
