"""What pulsar-perf and pulsar-client are asked to do, in order, by compat/compare_pulsar_tools.py.

In braces: `{ns}` is a namespace with `{tenant}`, `{service}` and `{admin}` are the broker's
addresses, `{keys}` is a folder with `public.pem` and `private.pem`.
"""

from __future__ import annotations

__all__ = ["CLIENT", "PERF"]

_FAST = "-u {service} -r 5000 --warmup-time 0 -m"
#: Consumers start one after the other, and pulsar-perf ends when all together have enough messages.
#: If that is before the last one has started it prints no count, and sometimes an
#: `IllegalStateException` of Java's exit. So the rate (messages per second) makes
#: each of these commands last for two seconds or more.
_TAKE = "-u {service} -sp Earliest -r"

#: Commands of pulsar-perf, with a name for what they show. Each ends by itself.
PERF: tuple[tuple[str, str], ...] = (
    ("batches", f"produce {_FAST} 3000 -s 100 {{ns}}/plain"),
    ("exclusive", f"consume {_TAKE} 1000 -m 3000 -ss exclusive {{ns}}/plain"),
    ("shared", f"consume {_TAKE} 1000 -m 3000 -ss shared -st Shared -n 2 {{ns}}/plain"),
    ("failover", f"consume {_TAKE} 1000 -m 3000 -ss failover -st Failover -n 2 {{ns}}/plain"),
    ("batch index", f"consume {_TAKE} 500 -m 1500 -ss i -st Shared --batch-index-ack {{ns}}/plain"),
    ("read", "read -u {service} -r 1000 -n 3000 {ns}/plain"),
    ("single", f"produce {_FAST} 500 -s 1000 -db -z LZ4 {{ns}}/codecs"),
    ("zlib", f"produce {_FAST} 500 -s 1000 -z ZLIB {{ns}}/codecs"),
    ("zstd", f"produce {_FAST} 500 -s 1000 -z ZSTD {{ns}}/codecs"),
    ("snappy", f"produce {_FAST} 500 -s 1000 -z SNAPPY {{ns}}/codecs"),
    ("codecs", f"consume {_TAKE} 600 -m 2000 -ss s {{ns}}/codecs"),
    ("chunks", "produce -u {service} -r 2 --warmup-time 0 -m 3 -s 6000000 -db -ch {ns}/chunks"),
    ("joined", f"consume {_TAKE} 1 -m 3 -ss s {{ns}}/chunks"),
    ("keys", f"produce {_FAST} 1000 -s 100 -mk random {{ns}}/keys"),
    ("key shared", f"consume {_TAKE} 300 -m 1000 -ss s -st Key_Shared -n 3 {{ns}}/keys"),
    ("partitions", f"produce {_FAST} 900 -s 100 -np 3 -au {{admin}} {{ns}}/parts"),
    ("of partitions", f"consume {_TAKE} 300 -m 900 -ss s -st Shared {{ns}}/parts"),
    ("topics", f"produce {_FAST} 600 -s 100 -t 2 -n 2 {{ns}}/many"),
    ("encrypted", f"produce {_FAST} 200 -s 100 -k k -v {{keys}}/public.pem {{ns}}/secret"),
    ("decrypted", f"consume {_TAKE} 60 -m 200 -ss s -v {{keys}}/private.pem {{ns}}/secret"),
    ("access mode", f"produce {_FAST} 200 -s 100 -am Exclusive -set -d 1 {{ns}}/exclusive"),
    ("absent tenant", f"produce {_FAST} 10 -s 100 -ef absent-{{tenant}}/ns/t"),
    (
        "transactions",
        "transaction -u {service} -au {admin} --topics-c {ns}/a --topics-p {ns}/b -ntxn 5 -time 20",
    ),
    ("in a transaction", f"produce {_FAST} 10 -s 100 -txn -nmt 5 -time 20 {{ns}}/txn"),
)

#: Commands of pulsar-client, all in one pulsar-shell.
CLIENT: tuple[str, ...] = (
    "client produce {ns}/client -m one,two,three",
    "client produce {ns}/client -m four -k key -p a=b,c=d",
    "client produce {ns}/client -m five -db -n 2 -s #",
    "client consume {ns}/client -s s -n 3 -p Earliest",
    "client consume {ns}/client -s s -n 3 -mp",
    "client consume {ns}/client -s shared -n 6 -t Shared -p Earliest --hex",
    "client consume {ns}/client -s keys -n 6 -t Key_Shared -p Earliest --hide-content",
    "client consume {ns}/client -s reader -n 6 -t Failover -m NonDurable -p Earliest",
    "client read {ns}/client -n 6 -m earliest",
    "client read {ns}/client -n 2 -m earliest -q 1",
    "client produce {ns}/text -m hello -vs string",
    "client consume {ns}/text -s s -n 1 -p Earliest -st auto_consume",
    "client produce {ns}/text -m 1 -vs bytes",
    "client produce {ns}/pairs -m v -vs string -ks string -kvk k -kvet separated",
    "client consume {ns}/pairs -s s -n 1 -p Earliest -st auto_consume",
    "client produce {ns}/pairs -m v -vs string",
    "client consume {ns}/tex.* --regex -s pattern -n 2 -p Earliest",
    "client produce {ns}/secret2 -m hidden -ekn k -ekv file://{keys}/public.pem",
    "client consume {ns}/secret2 -s s -n 1 -p Earliest -ekv file://{keys}/private.pem",
    "client consume {ns}/secret2 -s raw -n 1 -p Earliest -ca CONSUME --hide-content",
    "client produce absent-{tenant}/ns/t -m lost",
    "client produce {ns}/client -m x -vs nonsense",
    "client read absent-{tenant}/ns/t -n 1 -m earliest",
    "client produce {ns}/client -p nonsense -m x",
)
