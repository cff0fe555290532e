"""Commands of pulsar-admin and pulsar-client, as pulsar-shell takes them, in order.

`{tenant}`, `{ns}` and `{topic}` are names that only this run uses. `{ready}` is a topic with five
messages, the first three of them in a batch, in ledger `{ledger}`. No command changes anything of
the whole cluster: the peer may have other users.
"""

from __future__ import annotations

from .admin_policies import NAMESPACE_POLICIES, TOPIC_POLICIES
from .admin_topics import TOPICS

__all__ = ["COMMANDS"]

_CLUSTER = """
admin brokers list standalone
admin brokers leader-broker
admin brokers healthcheck
admin brokers list-dynamic-config
admin brokers get-all-dynamic-config
admin brokers get-internal-config
admin brokers version
admin brokers backlog-quota-check
admin clusters get standalone
admin clusters get absent
admin broker-stats load-report
admin brokers namespaces standalone --url 127.0.0.1:1
admin brokers get-runtime-config --no-such-option
admin brokers update-dynamic-config --config noSuchSetting --value 1
admin brokers delete-dynamic-config --config noSuchSetting
admin broker-stats allocator-stats absent
admin clusters list
admin proxy-stats connections
admin proxy-stats topics
""".strip().splitlines()

_NAMESPACES = """
admin tenants get {tenant}
admin tenants create {tenant} --allowed-clusters nowhere
admin tenants create {tenant} --admin-roles a,b --allowed-clusters standalone
admin tenants create {tenant} --allowed-clusters standalone
admin tenants get {tenant}
admin tenants update {tenant} --admin-roles c --allowed-clusters standalone
admin tenants get {tenant}
admin tenants update absent-{tenant} --allowed-clusters standalone
admin namespaces list {tenant}
admin namespaces list absent-{tenant}
admin namespaces create {ns} --bundles 8
admin namespaces create {ns}
admin namespaces create absent-{tenant}/x
admin namespaces list {tenant}
admin namespaces policies {ns}
admin namespaces policies {tenant}/absent
admin namespaces bundles {ns}
admin namespaces split-bundle {ns} --bundle zz
admin namespaces get-clusters {ns}
admin namespaces set-clusters {ns} --clusters standalone
admin namespaces set-clusters {ns} --clusters nowhere
admin namespaces set-property {ns} -k k -v v
admin namespaces get-property {ns} -k k
admin namespaces get-properties {ns}
admin namespaces set-properties {ns} -p a=1,b=2
admin namespaces remove-property {ns} -k k
admin namespaces clear-properties {ns}
admin namespaces get-retention {ns}
admin namespaces set-retention {ns} --time 10m --size 5M
admin namespaces get-retention {ns}
admin namespaces remove-retention {ns}
admin namespaces get-message-ttl {ns}
admin namespaces set-message-ttl {ns} --messageTTL 60
admin namespaces get-message-ttl {ns}
admin namespaces remove-message-ttl {ns}
admin namespaces get-deduplication {ns}
admin namespaces get-max-producers-per-topic {ns}
admin namespaces get-schema-compatibility-strategy {ns}
admin namespaces permissions {ns}
admin namespaces create {ns}-x --clusters standalone
admin namespaces create {ns}-y --clusters nowhere
admin namespaces create {ns}-y --bundles 0
admin namespaces delete {ns}-x
admin namespaces topics {ns}
admin namespaces topics {ns} --mode NON_PERSISTENT
admin namespaces topics {ns} --mode NO_SUCH
admin namespaces topics {tenant}/absent
admin namespaces grant-permission {ns} --role r --actions produce,consume
admin namespaces grant-permission {ns} --role r2 --actions no_such
admin namespaces grant-permission {tenant}/absent --role r --actions consume
admin namespaces permissions {ns}
admin namespaces revoke-permission {ns} --role r
admin namespaces revoke-permission {ns} --role absent
admin namespaces permissions {ns}
admin namespaces grant-subscription-permission {ns} --subscription s --roles r,q
admin namespaces subscription-permission {ns}
admin namespaces revoke-subscription-permission {ns} --subscription s --role r
admin namespaces subscription-permission {ns}
admin namespaces revoke-subscription-permission {ns} --subscription s --role q
admin namespaces unload {ns} -b 0x40000000_0x60000000
admin namespaces unload {ns} -b zz
admin namespaces unload {tenant}/absent
admin namespaces clear-backlog {tenant}/absent -f
admin namespaces get-topic-positions {ns} -b 0x80000000_0xc0000000 -tl {ns}/t
admin namespaces update-migration-state {tenant}/absent --migrated
""".strip().splitlines()

_END = """
admin schemas get {topic}
admin namespaces clear-backlog {ns} -f
admin namespaces unsubscribe {ns} -s end
admin namespaces unload {ns}
admin namespaces delete {ns}
admin topics truncate {topic}
admin topics delete {topic}
admin topics delete {topic}
admin namespaces delete {ns}
admin namespaces delete {ns}
admin tenants delete {tenant}
admin tenants delete {tenant}
""".strip().splitlines()

COMMANDS = [*_CLUSTER, *_NAMESPACES, *TOPICS, *TOPIC_POLICIES, *NAMESPACE_POLICIES, *_END]
