"""The sink ``pulsar-ledger``: writes rows to a broker's topics, over Pulsar's protocol.

options   what a user can choose
rows      columns of Arrow batches as messages
writers   Spark's writers, of a batch and of a stream
"""
