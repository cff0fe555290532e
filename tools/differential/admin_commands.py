"""Commands of pulsar-admin and pulsar-client, as pulsar-shell takes them, in order.

`{tenant}`, `{ns}` and `{topic}` are names that only this run uses. No command changes anything of
the whole cluster: the peer may have other users.
"""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = """
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
admin clusters get-peer-clusters standalone
admin clusters list-failure-domains standalone
admin clusters get-failure-domain standalone --domain-name absent
admin ns-isolation-policy list standalone
admin ns-isolation-policy get standalone absent
admin resourcegroups list
admin resourcegroups get absent
admin resource-quotas get
admin bookies racks-placement
admin bookies get-bookie-rack --bookie absent
admin broker-stats load-report
admin functions list --tenant public --namespace default
admin sinks list --tenant public --namespace default
admin sources list --tenant public --namespace default
admin packages list --type function public/default
admin transactions coordinators-list
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
admin namespaces split-bundle {ns} --bundle 0x00000000_0x20000000
admin namespaces split-bundle {ns} --bundle zz
admin namespaces bundles {ns}
admin namespaces get-clusters {ns}
admin namespaces set-clusters {ns} --clusters standalone
admin namespaces set-clusters {ns} --clusters nowhere
admin namespaces get-persistence {ns}
admin namespaces set-persistence {ns} -e 1 -w 1 -a 1 -r 0
admin namespaces get-persistence {ns}
admin namespaces remove-persistence {ns}
admin namespaces get-anti-affinity-group {ns}
admin namespaces set-anti-affinity-group {ns} --group g
admin namespaces get-anti-affinity-group {ns}
admin namespaces delete-anti-affinity-group {ns}
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
admin namespaces get-backlog-quotas {ns}
admin namespaces get-deduplication {ns}
admin namespaces get-max-producers-per-topic {ns}
admin namespaces get-schema-compatibility-strategy {ns}
admin namespaces permissions {ns}
admin topics list {ns}
admin topics list {tenant}/absent
admin topics list-partitioned-topics {ns}
admin topics create {topic}
admin topics create {topic}
admin topics create {tenant}/absent/t
admin topics list {ns}
admin topics lookup {topic}
admin topics bundle-range {topic}
admin topics get-properties {topic}
admin topics update-properties {topic} -p k=v
admin topics remove-properties {topic} -k k
admin topics stats {topic}-absent
admin topics create-subscription {topic} -s s -m earliest
admin topics create-subscription {topic} -s s
admin topics create-subscription {topic} -s end
admin topics subscriptions {topic}
admin topics update-subscription-properties {topic} -s s -p a=b
admin topics get-subscription-properties {topic} -s s
client produce {topic} -m one,two,three
client produce {topic} -m four -k key -p a=b
client consume {topic} -s s -n 1
client consume {topic} -s s -n 3 -t Shared
client consume {topic} -s fresh -n 2 -p Earliest
client produce {ns_absent} -m lost
admin topics stats {topic}
admin topics stats {topic} -gpb -sbs -etb
admin topics stats-internal {topic}
admin topics info-internal {topic}
admin topics last-message-id {topic}
admin topics get-message-id {topic} -d 2020-01-01T00:00:00Z
admin topics analyze-backlog {topic} -s s
admin topics peek-messages {topic} -s s -n 1
admin topics skip {topic} -s s -n 1
admin topics skip {topic} -s absent -n 1
admin topics reset-cursor {topic} -s s -t 1h
admin topics clear-backlog {topic} -s s
admin topics expire-messages {topic} -s s -t 1
admin topics compaction-status {topic}
admin topics offload-status {topic}
admin topics set-replicated-subscription-status {topic} -s s -e
admin topics get-replicated-subscription-status {topic} -s s
admin topics get-retention {topic}
admin topics get-message-ttl {topic}
admin topics unload {topic}
admin topics unsubscribe {topic} -s s
admin topics unsubscribe {topic} -s s
admin topics create-partitioned-topic {topic}-p -p 2
admin topics create-partitioned-topic {topic}-p -p 2
admin topics create-partitioned-topic {topic}-z -p 0
admin topics get-partitioned-topic-metadata {topic}-p
admin topics update-partitioned-topic {topic}-p -p 3
admin topics update-partitioned-topic {topic}-p -p 1
admin topics create-missed-partitions {topic}-p
admin topics partitioned-stats {topic}-p
admin topics partitioned-stats {topic}-p --per-partition
admin topics partitioned-stats-internal {topic}-p
admin topics partitioned-lookup {topic}-p
admin topics delete {topic}-p
admin topics list-partitioned-topics {ns}
admin topics delete-partitioned-topic {topic}-p
admin topics delete-partitioned-topic {topic}-p
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
