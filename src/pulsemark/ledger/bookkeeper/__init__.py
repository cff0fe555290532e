"""The engine on Apache BookKeeper and ZooKeeper: each ledger is one of BookKeeper's.

Below it `client` speaks BookKeeper's protocol.
"""
