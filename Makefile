# Every target does the set-up it needs: only Python 3.11+, its venv module and make are asked for.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2
TEST_JOBS ?= 4
FUZZ_VENV := .venv-fuzz
FUZZ_BIN := $(FUZZ_VENV)/bin
FUZZ_STAMP := $(FUZZ_VENV)/.installed
RELEASE_VENV := .venv-release
RELEASE_BIN := $(RELEASE_VENV)/bin
RELEASE_STAMP := $(RELEASE_VENV)/.installed
DOCS_VENV := .venv-docs
DOCS_BIN := $(DOCS_VENV)/bin
DOCS_STAMP := $(DOCS_VENV)/.installed
SECONDS ?= 3600
SEEDS ?= 300
FIRST ?= 1
ROUNDS ?= 1000
AGAINST ?= HEAD~1
TARGETS ?=
MODEL ?=
ROOMS ?=
MUTATION ?=

.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # modules are compiled once, not in each of the processes that the tests start
.PHONY: help demo test test-page attacks test-long test-servers simulate campaign mutants bench bench-cpu bench-scale bench-providers bench-clouds bench-chunks bench-deltas bench-daemon bench-heal bench-small soak fuzz model check docs dist audit reference recording pictures format lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(STAMP): pyproject.toml requirements-dev.lock
	@echo "setting up $(VENV) (once; about a minute)"
	@$(PYTHON) -c 'import sys; sys.exit("MetaSync needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## three providers and two devices in a temporary folder
	@$(BIN)/metasync demo

RUN_TESTS := $(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal

test: $(STAMP) ## the tests that need nothing but this machine: some minutes on two cores
	$(RUN_TESTS) -m "not servers and not long and not pages and not browser"

attacks: $(STAMP) ## what an attacker does, and what must hold: one module for each thing that is attacked
	$(RUN_TESTS) tests/attacks

test-long: $(STAMP) ## what explores: kills at every call, many seeds, many examples: a quarter of an hour and more
	$(RUN_TESTS) -m "not servers and (long or hypothesis)" --hypothesis-profile=long

test-servers: $(STAMP) ## the tests against real servers on loopback (fetches and starts them)
	PYTHON=$(BIN)/python tests/servers/run.sh

test-page: $(STAMP) ## the page in a real Chromium, fetched where there is none: flows, axe, phone width
	PYTHON=$(BIN)/python tests/dashboard/run.sh

simulate: $(STAMP) ## whole clients on virtual time (SEEDS=20000 FIRST=1), all cores; MUTANTS=1: broken rules are caught
	PYTHONPATH=tests $(BIN)/python -m simulation.simulator --seeds $(SEEDS) --first $(FIRST) \
		$(if $(MUTANTS),--mutants,--keep tests/simulation/kept.jsonl)

campaign: $(STAMP) ## backends are wiped and damaged round after round while devices push (ROUNDS=1000), and on real processes (REAL=50)
	PYTHONPATH=tests $(BIN)/python -m simulation.campaigns --rounds $(ROUNDS) --real $(or $(REAL),50) --first $(FIRST)

mutants: $(STAMP) ## one fault in every guard that agrees, merges, checks out or deletes: hours; ROOMS="merge" MUTATION=--left
	PYTHONPATH=tests nice -n 10 $(BIN)/python -m mutation --jobs $(JOBS) $(if $(ROOMS),--rooms $(ROOMS)) $(MUTATION)

bench: $(STAMP) ## bench-cpu, then restic, rclone, borg, git, unison, cp beside it; hours for all: BENCH="--net near --load paper"
	$(BIN)/python tests/benchmarks/cpu.py --commit $(AGAINST) --runs 5 || slower=1; \
	server=$$(tests/servers/versitygw.sh) && METASYNC_S3_SERVER=$$server $(BIN)/python tests/benchmarks/bench.py $(BENCH) \
		&& exit $${slower:-0}

bench-cpu: $(STAMP) ## CPU, requests, round trips of each step beside the commit before (AGAINST=HEAD~5); over a fifth more fails
	$(BIN)/python tests/benchmarks/cpu.py --commit $(AGAINST) $(CPU)

bench-providers: $(STAMP) ## requests, bytes and CPU of a push per provider, on the servers that are fetched; PROVIDERS="--only s3"
	. tests/servers/fetched.sh; $(BIN)/python tests/benchmarks/providers.py $(PROVIDERS)

bench-clouds: $(STAMP) ## requests, bytes and CPU of a push to each cloud as one of three, on stand-ins; CLOUDS="--files 1,70"
	$(BIN)/python tests/benchmarks/clouds/bench_clouds.py $(CLOUDS)

bench-chunks: $(STAMP) ## what an edit stores, by how finely documents are cut, with and without deltas; CHUNKS="--edits 10"
	$(BIN)/python tests/benchmarks/chunks.py $(CHUNKS)

bench-deltas: $(STAMP) ## what changes of files cost with deltas, beside bars: ten minutes; DELTAS="--only tar,sqlite"
	$(BIN)/python tests/benchmarks/deltas.py $(DELTAS)

bench-scale: $(STAMP) ## very many files, very large ones: an hour, 30 GB; less: SCALE="--parts files --files 10000,100000"
	$(BIN)/python tests/benchmarks/scale.py $(SCALE)

bench-heal: $(STAMP) ## moving, scrub and collection beside their bars; a part, or less: ROWS="gc=1000"
	$(BIN)/python tests/benchmarks/heal/__main__.py $(ROWS)

bench-daemon: $(STAMP) ## what keeping a folder in step costs: bytes, requests, CPU; a part, or less: ROWS="appends idle=15000"
	$(BIN)/python tests/benchmarks/daemon/__main__.py $(ROWS)

soak: $(STAMP) ## devices kept in step through edits, outages, crashes: HOURS=24 simulated, or REAL=20 minutes on daemons; SEED=1
	$(BIN)/python tests/service/soak.py $(if $(REAL),--real $(REAL),--hours $(or $(HOURS),24)) --seed $(or $(SEED),1)

bench-small: $(STAMP) ## requests, HTTP bytes and seconds of one small file pushed, warm and cold, near and far; SMALL="--ignore"
	server=$$(tests/servers/versitygw.sh) && METASYNC_S3_SERVER=$$server $(BIN)/python tests/benchmarks/small.py $(SMALL)

$(FUZZ_STAMP): pyproject.toml requirements-dev.lock tests/fuzz/requirements.txt
	@echo "setting up $(FUZZ_VENV) (once; about a minute)"
	@$(PYTHON) -m venv $(FUZZ_VENV)
	@$(FUZZ_BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	@$(FUZZ_BIN)/python -m pip install --quiet --require-hashes -r tests/fuzz/requirements.txt \
		|| echo "atheris cannot be installed here: a plain mutator takes its place"
	@touch $@

fuzz: $(FUZZ_STAMP) ## fuzz the decoders (SECONDS=3600 in all, TARGETS="dir log")
	$(FUZZ_BIN)/python tests/fuzz/run.py --seconds $(SECONDS) --jobs $(JOBS) --targets $(TARGETS)

model: ## check the models of the agreement with TLC (Java, Maven): 15 minutes; MODEL="Floors no-fence", MODEL=big
	@$(PYTHON) -c 'import sys; sys.exit("make model needs Python 3.11 or newer. Try: make model PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) docs/design/tla/run.py --jobs $(JOBS) $(MODEL)

check: $(STAMP) ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(DOCS_STAMP): requirements-docs.lock
	@echo "setting up $(DOCS_VENV) (once; half a minute)"
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_BIN)/python -m pip install --quiet --require-hashes -r requirements-docs.lock
	@touch $@

docs: $(DOCS_STAMP) $(STAMP) ## the documentation as a site in build/site; broken links fail, and examples that do not do what a page says
	$(RUN_TESTS) -m pages tests/documents
	@NO_MKDOCS_2_WARNING=1 $(DOCS_BIN)/mkdocs build --strict
	@echo "build/site/index.html"

$(RELEASE_STAMP): requirements-release.lock
	@echo "setting up $(RELEASE_VENV) (once; half a minute)"
	@$(PYTHON) -m venv $(RELEASE_VENV)
	@$(RELEASE_BIN)/python -m pip install --quiet --require-hashes -r requirements-release.lock
	@touch $@

dist: $(STAMP) $(RELEASE_STAMP) ## the release of the last commit in dist/: built twice and compared, what it needs, hashes of all
	$(BIN)/python release/dist.py $(RELEASE_BIN)/cyclonedx-py

audit: $(RELEASE_STAMP) ## known vulnerabilities of what the locks name, where a database can be had (needs the network)
	$(RELEASE_BIN)/python release/audit.py $(RELEASE_BIN)/pip-audit

reference: $(STAMP) ## the command reference and the man pages anew, from the commands (docs/reference)
	$(BIN)/python docs/reference/make.py

recording: $(STAMP) ## the picture of a session in README anew, from a session in a terminal (docs/recording)
	$(BIN)/python docs/recording/make.py

pictures: $(STAMP) ## the pictures of the page anew, in a Chromium (docs/pictures)
	$(BIN)/python docs/pictures/make.py

format: $(STAMP) ## format and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

COMPILE = $(VENV)-lock/bin/pip-compile --quiet --strip-extras --generate-hashes --allow-unsafe \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header

lock: ## pin the development tools anew (needs the network)
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet pip-tools
	$(COMPILE) --extra dev --all-build-deps --output-file requirements-dev.lock pyproject.toml
	$(COMPILE) --extra docs --output-file requirements-docs.lock pyproject.toml
	$(COMPILE) --extra release --output-file requirements-release.lock pyproject.toml
	$(COMPILE) --constraint requirements-dev.lock --output-file requirements.lock pyproject.toml
	$(COMPILE) --constraint requirements-dev.lock $(addprefix --extra ,s3 azure gcs swift webdav sftp dropbox gdrive box keyring ui notices amqp mqtt metrics) \
		--output-file requirements-all.lock pyproject.toml
	rm -rf $(VENV)-lock

clean: ## remove what the targets above made
	rm -rf $(VENV) $(FUZZ_VENV) $(DOCS_VENV) $(RELEASE_VENV) .fuzz .servers .tla build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
