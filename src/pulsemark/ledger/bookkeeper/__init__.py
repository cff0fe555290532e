"""The engine on Apache BookKeeper and ZooKeeper: each ledger is one of BookKeeper's."""
