"""The examples at the end of each command's `--help`. A test parses every one of them."""

from __future__ import annotations

__all__ = ["EXAMPLES"]

EXAMPLES: dict[str, tuple[str, ...]] = {
    "standalone": (
        "pulsemark standalone",
        "pulsemark standalone --data-dir /var/lib/pulsemark --grpc-port 6680 --kafka-port 9092",
        "pulsemark standalone --config pulsemark.toml --log-format json --log-level info",
    ),
    "topics": (
        "pulsemark topics list public/default",
        "pulsemark topics create orders --partitions 4",
        "pulsemark topics show orders",
        "pulsemark topics delete orders --force",
    ),
    "subscriptions": (
        "pulsemark subscriptions list orders",
        "pulsemark subscriptions create orders billing --at earliest",
        "pulsemark subscriptions reset orders billing -15m",
        "pulsemark subscriptions reset orders billing earliest",
        "pulsemark subscriptions skip orders billing",
        "pulsemark subscriptions delete orders billing",
    ),
    "namespaces": (
        "pulsemark namespaces list",
        "pulsemark namespaces create acme/orders",
        "pulsemark namespaces delete acme/orders",
    ),
    "schemas": (
        "pulsemark schemas show orders",
        "pulsemark schemas upload orders --type AVRO --file order.avsc",
        "pulsemark schemas delete orders",
    ),
    "stats": (
        "pulsemark stats",
        "pulsemark stats orders --interval 2",
        "pulsemark stats --namespace acme/orders --json",
    ),
    "produce": (
        "pulsemark produce orders --message paid --key 42 --property shop=north",
        "tail -f app.log | pulsemark produce logs",
    ),
    "consume": (
        "pulsemark consume orders --subscription billing --num-messages 10",
        "pulsemark consume orders --peek --from earliest",
    ),
    "perf": (
        "pulsemark perf produce orders --rate 1000 --size 1024 --time 30",
        "pulsemark perf consume orders --subscription load --num-messages 100000",
        "pulsemark perf seek orders --rate 20 --num-messages 200",
    ),
    "policies": (
        "pulsemark policies get orders retention --applied",
        "pulsemark policies set public/default retention --time 60 --size 512",
        "pulsemark policies set orders brokerEntryMetadata --stampers broker-time,index,producer",
        "pulsemark policies set orders maxProducersPerTopic --value 10",
        "pulsemark policies unset orders retention",
    ),
    "control": (
        "pulsemark control append orders checkpoint 17 --grpc 127.0.0.1:6680 --token-file t",
        "pulsemark control list orders",
        "pulsemark control epochs orders",
    ),
    "seek": (
        "pulsemark seek orders -15m",
        "pulsemark seek orders 2026-03-01T10:00:00Z --data-dir /var/lib/pulsemark --json",
        "pulsemark seek orders 14:05 --grpc 127.0.0.1:6680",
    ),
    "dump": (
        "pulsemark dump orders --limit 10",
        "pulsemark dump orders --from-time -10m --payload",
        "pulsemark dump pulsemark-data --json",
        "pulsemark dump pulsemark-data/ledgers/0000000000000001-00000000.log",
    ),
    "verify": (
        "pulsemark verify",
        "pulsemark verify /var/lib/pulsemark",
        "pulsemark verify orders --data-dir /var/lib/pulsemark --json",
    ),
    "rebuild-catalog": ("pulsemark rebuild-catalog /var/lib/pulsemark",),
    "backup": (
        "pulsemark backup /backups/2026-03-01 --data-dir /var/lib/pulsemark",
        "pulsemark backup /backups/2026-03-01 --verify",
    ),
    "restore": ("pulsemark restore /backups/2026-03-01 --data-dir /var/lib/pulsemark",),
    "retain": (
        "pulsemark retain --dry-run",
        "pulsemark retain orders --admin-url http://127.0.0.1:8080",
        "pulsemark retain --data-dir /var/lib/pulsemark --config broker.conf",
    ),
    "mirror": (
        "pulsemark mirror pulsar://127.0.0.1:6650 backup --topics orders --once --verify",
        "pulsemark mirror pulsemark-data copied --topics orders --once",
    ),
    "finder": ("pulsemark finder serve --data-dir pulsemark-data --port 6680",),
    "token": (
        "pulsemark token create-secret-key --output secret.key",
        "pulsemark token create --secret-key secret.key --subject ann --expiry-time 30d",
        "pulsemark token show --token-file ann.token",
        "pulsemark token validate --secret-key secret.key --token-file ann.token",
    ),
    "audit": (
        "pulsemark audit orders --by producer --from -1h",
        "pulsemark audit --data-dir pulsemark-data --bucket '1 hour'",
        "pulsemark audit compare orders --tier billing",
    ),
    "pipeline": (
        "pulsemark pipeline audit pulsemark-data --topic orders --by producer",
        "pulsemark pipeline verify pulsemark-data",
        "pulsemark pipeline skew pulsemark-data --starting-time -1h",
    ),
    "config": (
        "pulsemark config check broker.conf",
        "pulsemark config check pulsemark.toml --json",
        "pulsemark config show --config pulsemark.toml",
        "pulsemark config settings",
    ),
    "completion": (
        "pulsemark completion bash > ~/.local/share/bash-completion/completions/pulsemark",
        "pulsemark completion zsh > ~/.zfunc/_pulsemark",
        "pulsemark completion fish > ~/.config/fish/completions/pulsemark.fish",
    ),
}
