"""Commands of pulsar-admin about topics, subscriptions and schemas, as pulsar-shell takes them.

`differential/admin_commands.py` says what stands in braces.
"""

from __future__ import annotations

__all__ = ["TOPICS"]

TOPICS = """
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
admin topics grant-permission {topic} --role r --actions produce
admin topics permissions {topic}
admin topics revoke-permission {topic} --role r
admin topics revoke-permission {topic} --role r
admin topics permissions {topic}
admin topics grant-permission {topic} --role r --actions no_such
admin topics subscriptions {topic}-absent
admin topics create-subscription {topic} -s at -m {ledger}:1
admin topics create-subscription {topic} -s bad -m x:y
admin topics create-subscription {topic} -s latest -m latest -p a=b
admin topics unsubscribe {topic} -s latest
admin topics get-subscription-properties {topic} -s absent
admin topics update-subscription-properties {topic} -s s -c
admin topics update-subscription-properties {topic} -s absent -p a=b
admin topics subscriptions {ready}
admin topics stats {ready}
admin topics stats {ready} -gpb
admin topics stats-internal {ready} --metadata
admin topics stats-internal {ready}-absent
admin topics peek-messages {ready} -s s -n 5
admin topics peek-messages {ready} -s s -n 20
admin topics peek-messages {ready} -s s -n 0
admin topics peek-messages {ready} -s s -n 1 -ssm
admin topics examine-messages {ready} -i earliest -m 1
admin topics examine-messages {ready} -i earliest -m 2
admin topics examine-messages {ready} -i latest -m 1
admin topics examine-messages {ready} -i latest -m 9
admin topics examine-messages {ready} -i no_such -m 1
admin topics examine-messages {ready}-absent -i latest -m 1
admin topics get-message-by-id {ready} -l {ledger} -e 0
admin topics get-message-by-id {ready} -l {ledger} -e 2
admin topics get-message-by-id {ready} -l {ledger} -e 99
admin topics get-message-by-id {ready} -l 999999 -e 0
admin topics get-message-id {ready} -d 2020-01-01T00:00:00Z
admin topics get-message-id {ready} -d 2199-01-01T00:00:00Z
admin topics get-message-id {ready} -d no-time
admin topics last-message-id {ready}
admin topics last-message-id {ready}-absent
admin topics analyze-backlog {ready} -s s
admin topics analyze-backlog {ready} -s s -p {ledger}:1
admin topics analyze-backlog {ready} -s absent
admin topics get-backlog-size {ready} -m {ledger}:2
admin topics get-backlog-size {ready} -m 1:1:1
admin topics skip {ready} -s s -n 0
admin topics skip {ready} -s s -n 2
admin topics stats {ready}
admin topics skip {ready} -s s -n 50
admin topics stats {ready}
admin topics reset-cursor {ready} -s s -m {ledger}:1
admin topics stats {ready}
admin topics reset-cursor {ready} -s s -m {ledger}:1 -e
admin topics stats {ready}
admin topics reset-cursor {ready} -s s -m earliest
admin topics reset-cursor {ready} -s s -m latest
admin topics reset-cursor {ready} -s s -m 999999:0
admin topics reset-cursor {ready} -s s -m x
admin topics reset-cursor {ready} -s s
admin topics reset-cursor {ready} -s absent -t 1h
admin topics reset-cursor {ready} -s s -t 1h
admin topics stats {ready}
admin topics expire-messages {ready} -s s -t 100000
admin topics expire-messages {ready} -s s -p {ledger}:1
admin topics stats {ready}
admin topics expire-messages {ready} -s s -p {ledger}:2 -e
admin topics expire-messages {ready} -s absent -t 1
admin topics expire-messages {ready} -s s
admin topics expire-messages-all-subscriptions {ready} -t 100000
admin topics clear-backlog {ready} -s s
admin topics clear-backlog {ready} -s absent
admin topics stats {ready}
admin topics compact {ready}
admin topics compaction-status {ready} --wait-complete
admin topics compact {ready}-absent
admin topics compaction-status {ready}-absent
admin topics offload {ready} -s 10M
admin topics offload {ready} -s 0
admin topics offload-status {ready}
admin topics offload {ready}-absent -s 10M
admin topics trim-topic {ready}
admin topics trim-topic {ready}-absent
admin topics unload {ready}
admin topics unload {ready}-absent
admin topics get-replication-clusters {ready}
admin topics get-replication-clusters {ready} --applied
admin topics set-replication-clusters {ready} -c standalone
admin topics remove-replication-clusters {ready}
admin topics get-shadow-topics {ready}
admin topics set-shadow-topics {ready} -t {topic}
admin topics remove-shadow-topics {ready}
admin topics create-shadow-topic {ready}-shadow -s {ready}
admin topics get-shadow-source {ready}
admin topics get-schema-validation-enforce {ready}
admin topics get-schema-validation-enforce {ready} --applied
admin topics set-schema-validation-enforce {ready} -e
admin topics get-schema-validation-enforce {ready}
admin topics set-schema-validation-enforce {ready}
admin topics terminate {ready}
admin topics terminate {ready}
admin topics stats-internal {ready}
client produce {ready} -m late
admin topics terminate {ready}-absent
admin topics truncate {ready}
admin topics stats-internal {ready}
admin topics delete {ready}-absent
admin topics delete {ready}-absent --force
admin topics create {ready}-m -m a=b
admin topics get-properties {ready}-m
admin topics create-partitioned-topic {topic}-q -p 2 -m a=b
admin topics get-partitioned-topic-metadata {topic}-q
admin topics get-properties {topic}-q
admin topics update-properties {topic}-q -p c=d
admin topics get-properties {topic}-q
client produce {topic}-q -m one -k a
client produce {topic}-q -m two -k b
admin topics create-subscription {topic}-q -s s -m earliest
admin topics subscriptions {topic}-q
admin topics partitioned-stats {topic}-q -gpb
admin topics stats {topic}-q
admin topics stats-internal {topic}-q
admin topics partitioned-stats-internal {topic}-q
admin topics skip {topic}-q -s s -n 1
admin topics peek-messages {topic}-q -s s -n 1
admin topics peek-messages {topic}-q-partition-0 -s s -n 2
admin topics clear-backlog {topic}-q -s s
admin topics expire-messages {topic}-q -s s -t 1
admin topics expire-messages-all-subscriptions {topic}-q -t 1
admin topics reset-cursor {topic}-q -s s -t 1h
admin topics reset-cursor {topic}-q -s s -m earliest
admin topics last-message-id {topic}-q
admin topics last-message-id {topic}-q-partition-0
admin topics get-message-id {topic}-q -d 2020-01-01T00:00:00Z
admin topics compact {topic}-q
admin topics compaction-status {topic}-q
admin topics terminate {topic}-q
admin topics partitioned-terminate {topic}-q
admin topics partitioned-terminate {topic}-absent
admin topics unload {topic}-q
admin topics truncate {topic}-q
admin topics unsubscribe {topic}-q -s s
admin topics lookup {topic}-q
admin topics partitioned-lookup {topic}-q --sort-by-broker
admin topics partitioned-lookup {topic}-absent
admin topics create-missed-partitions {topic}-absent
admin topics update-partitioned-topic {topic} -p 3
admin topics update-partitioned-topic {topic}-absent -p 3
admin topics delete-partitioned-topic {topic}-q --force
admin topics create non-{topic}-n
admin topics stats non-{topic}-n
admin topics stats-internal non-{topic}-n
admin topics subscriptions non-{topic}-n
admin topics create-subscription non-{topic}-n -s s
admin topics peek-messages non-{topic}-n -s s -n 1
admin topics unload non-{topic}-n
admin topics delete non-{topic}-n
admin non-persistent create-partitioned-topic non-{topic}-p -p 2
admin schemas upload {topic} -f {schemas}/user.json
admin schemas get {topic}
admin schemas get {topic} --version 0
admin schemas get {topic} --version 9
admin schemas compatibility {topic} -f {schemas}/user2.json
admin schemas compatibility {topic} -f {schemas}/other.json
admin schemas upload {topic} -f {schemas}/other.json
admin schemas upload {topic} -f {schemas}/broken.json
admin schemas upload {topic} -f {schemas}/user2.json
admin schemas get {topic} -a
admin schemas metadata {topic}
admin schemas upload {tenant}/absent/t -f {schemas}/user.json
admin schemas delete {topic}
admin schemas get {topic}
admin schemas delete {topic}
admin schemas delete {topic}-absent
""".strip().splitlines()
