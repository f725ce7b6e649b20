# The few words a developer needs. None of them wants anything activated: each sets up .venv when it is
# missing or pyproject.toml has changed, and goes.

.DEFAULT_GOAL := help
.PHONY: help system-packages setup setup-newest run test beside-slow check style types layers unit slow spark newest coverage docs bench bench-full bench-growth bench-guard conformance soak nightly constraints release clean
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

# The tests start a thousand interpreters. Where it is forbidden to write bytecode, each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

python = .venv/bin/python
pytest = $(python) -m pytest
# The tests run on the versions of .ci/constraints.txt; LATEST=1 lets pip choose the newest ones.
# Two stamps: a broker needs a fifth of what the tests do, and should not wait for the rest.
runnable = .venv/.set-up-to-run
developed = .venv/.set-up-to-develop

help:
	@echo 'make run      start a broker on localhost:9092 that keeps its data in korvet-data/'
	@echo 'make test     everything: check, then storage on every server, real clients, examples'
	@echo 'make check    lint, types, layers and unit tests: four minutes, no servers'
	@echo 'make bench    measurements beside Apache Kafka, one table: eight minutes, needs Java 17 and Maven'
	@echo '              (bench-full: half an hour; bench-growth: five minutes, plots; bench-guard: half a minute)'
	@echo 'make conformance   the answers of Apache Kafka and of korvet, compared: minutes, needs Java 17 and Maven'
	@echo 'make docs     the documentation site in build/site, with all links checked: half a minute'
	@echo 'make soak     loads and faults that run for minutes'
	@echo 'make coverage   the branches that the unit tests run, by package; ten minutes'
	@echo 'make nightly  coverage, soak and conformance: hours'
	@echo 'make release  sdist, wheel and SBOM in dist/, checked, and the tag; two minutes'
	@echo 'make setup    only the virtual environment .venv (PYTHON=… chooses the interpreter)'
	@echo 'make clean    remove .venv and caches; korvet-data stays'

setup: $(developed)

run: $(runnable)
	@exec $(python) -m korvet serve --storage embedded:korvet-data

# --keep-going: a failure, or a test that was skipped, does not hide what the rest has to say. What has one process, or
# waits for a network, runs beside something else.
test:
	@$(MAKE) --no-print-directory --jobs=3 system-packages setup setup-newest
	@status=0; \
	$(MAKE) --no-print-directory --keep-going check || status=1; \
	$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target slow beside-slow || status=1; \
	exit $$status

# Spark's tests end after half of the time.
beside-slow:
	@status=0; \
	$(MAKE) --no-print-directory spark || status=1; \
	$(MAKE) --no-print-directory newest || status=1; \
	exit $$status

system-packages:
	@.ci/system-packages

# Beside the types, which one process checks, the unit tests begin.
check: $(developed)
	@$(MAKE) --no-print-directory --jobs=2 style types layers unit

style: $(developed)
	$(python) -m ruff check
	$(python) -m ruff format --check

types: $(developed)
	$(python) -m mypy

layers: $(developed)
	$(python) -c 'from importlinter.cli import lint_imports_command as main; main()' --no-logo

unit: $(developed)
	$(pytest) -n 2 $(without) -m 'not slow and not servers and not clients and not spark and not soak $(without_rows)'

# Three at a time on two cores, and Spark beside them: they wait for servers and clients half of the time. What takes
# longest is named.
slow: $(developed)
	$(pytest) -n 3 --dist loadgroup --durations=20 -m '(slow or servers or clients) and not spark and not soak'

# In one process: starting Spark takes longer than most of what is asked of it. To collect all folders would take eight
# seconds more.
spark: $(developed)
	$(pytest) --durations=20 -m 'spark and not soak' tests/pipeline tests/everything

# The unit tests once more on the newest Python of this machine, when that is not the one in .venv: those of the
# broker and of its protocol. Spark would take longer to install than they run; the lake's, the pages' and the
# comparisons' are mostly about what is not ours, and the command line's start a process each. `rows` are thousands of
# tests for each version of each message, which run the same code; test_oracle.py's round trips do so here.
newest:
	@$(call in_newest,unit)

setup-newest:
	@$(call in_newest,setup)

version_of = "$$($(1) -c 'import sys; print(sys.version_info[:2])')"
in_newest = usual=$$(.ci/find-python) && newest=$$(.ci/find-python --newest) && \
	if [ $(call version_of,$$usual) = $(call version_of,$$newest) ]; then \
	    echo "$$newest is the newest Python of this machine, and the one in .venv."; \
	else \
	    $(MAKE) --no-print-directory $(1) python=.venv/newest/bin/python without_rows='and not rows' without='$(patsubst %,--ignore=tests/%,pipeline lake tiered cli web top metrics everything conformance bench test_packaging.py test_skips.py)' \
	        developed=.venv/newest/.set-up-to-develop PYTHON="$$newest"; \
	fi

# Branches of korvet/ that the unit tests run, by package; below a floor it fails. FLOORS=--write writes the floors.
coverage: $(developed)
	rm -rf build/coverage && mkdir -p build/coverage
	$(python) -m coverage run -m pytest -n 2 -m 'not slow and not servers and not clients and not spark and not soak'
	$(python) -m coverage combine -q
	$(python) -m coverage json -q -o build/coverage/report.json
	.ci/coverage-by-package build/coverage/report.json $(FLOORS)

# All pages are read again, for their warnings. Warnings are errors: a link to a page, a file or a heading that does not exist is one.
docs: $(developed)
	$(python) -m sphinx --fresh-env --fail-on-warning --keep-going --quiet --jobs auto --builder html --conf-dir docs . build/site
	@echo 'build/site/docs/README.html'

# OPTIONS="--write-docs" puts what is measured into docs/benchmarks.md; docs/benchmarks.md names others.
bench: $(developed)
	$(python) -m bench $(OPTIONS)

bench-full: $(developed)
	$(python) -m bench --full $(OPTIONS)
	$(python) -m bench.scaling --rounds 1
	$(python) -m bench.cluster --rounds 1

bench-growth: $(developed)
	$(python) -m bench.growth $(OPTIONS)

# A few figures beside the floor of the same minute. It informs: no figure makes it fail.
bench-guard: $(developed)
	$(python) -m bench.guard $(OPTIONS)

# WORDS="fetch: groups:" plays only the scenarios that have one in their names; PARTS="java go" runs only these clients.
conformance: $(developed)
	@status=0; \
	$(if $(PARTS),,$(python) -m conformance $(WORDS) || status=1;) \
	$(if $(WORDS),,$(python) -m conformance.clients $(PARTS) || status=1;) \
	$(if $(WORDS)$(PARTS),,$(python) -m conformance.authorization || status=1;) \
	exit $$status

# What takes too long for each change: measuring branches takes more than twice the time of the unit tests.
nightly:
	@status=0; \
	$(MAKE) --no-print-directory coverage || status=1; \
	$(MAKE) --no-print-directory soak || status=1; \
	$(MAKE) --no-print-directory conformance || status=1; \
	exit $$status

soak: $(developed)
	$(pytest) -m soak -o faulthandler_timeout=1200

# DRY=1 tries it without a commit and a tag.
release: $(developed)
	DRY=$(DRY) .ci/release $(python)

# After `make clean` and `make LATEST=1 test`.
constraints:
	@$(MAKE) --no-print-directory LATEST=1 setup setup-newest
	$(python) .ci/write-constraints > .ci/constraints.new && mv .ci/constraints.new .ci/constraints.txt

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find korvet tests bench conformance examples -name __pycache__ -prune -exec rm -rf {} +

# Where .venv was copied or its Python is gone, its own python does not start: begin again then. For the tests nothing
# is compiled in advance: of thousands of files hardly any is used, and whoever uses one compiles it.
$(runnable) $(developed): pyproject.toml .ci/constraints.txt
	@venv=$(@D); python=$$(.ci/find-python) || exit 1; \
	$$venv/bin/python -c '' 2>/dev/null || rm -rf $$venv/bin; \
	test -x $$venv/bin/python || { echo "Setting up $$venv with $$python"; $$python -m venv $$venv; } && \
	$$venv/bin/python -m pip --disable-pip-version-check install --quiet $(if $(findstring develop,$@),--no-compile) \
	    $(if $(findstring develop,$@),$(if $(LATEST),,--constraint .ci/constraints.txt)) \
	    --editable '.[$(if $(findstring newest,$@),test,$(if $(findstring develop,$@),dev,embedded))]'
	@$(@D)/bin/python -m compileall -q korvet  # or the first start would be the one that waits for it
	@touch $@ $(@D)/.set-up-to-run
