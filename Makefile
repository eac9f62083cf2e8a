# SPDX-License-Identifier: Apache-2.0
# The front door. `make` and `make install` use what is installed and install no packages: a C compiler, meson, ninja and
# the libraries; what is missing is named. The other targets do all their own set-up: system packages (apt), a private
# virtual environment (.venv), the build (build/).

PYTHON := .venv/bin/python
MESON := .venv/bin/meson
MAKEFLAGS += --no-print-directory
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export NINJA := $(CURDIR)/.venv/bin/ninja
SHELL := /bin/sh
comma := ,
.NOTPARALLEL:
.DEFAULT_GOAL := all
PREFIX ?= /usr/local
.PHONY: all demo demo-tune recording test test-all test-rest bench bench-device proof proof-stores proof-searches model fuzz lint tidy format check-san check-asan check-core check-switches check-tsan coverage install wheel sdist deb docs clean help \
	demo-venv deps-build deps-test deps-demo deps-peers deps-bench venv build package

# Everything that the wheel is made from: when one of these is newer, it is installed anew.
WHEEL_SOURCES := $(shell find include src tune cli python meson.build meson_options.txt pyproject.toml -type f 2>/dev/null)
# $(call SETUP,folder,options) and $(call COMPILE,folder): show warnings, and everything when they fail.
# In CI a warning is an error, but not under sanitizers, where GCC warns wrongly.
WERROR = $(if $(CI),--werror)
SETUP = [ -f $(1)/build.ninja ] || { rm -rf $(1); out=$$($(MESON) setup $(1) $(2) 2>&1) || { echo "$$out"; exit 1; }; }
COMPILE = out=$$($(NINJA) -C $(1) 2>&1) || { echo "$$out" | grep -v '^\[[0-9]*/[0-9]*\] [A-Z][a-z]* '; exit 1; }; \
	echo "$$out" | grep -A 6 'warning:' || true

# meson of the system, unless .venv has one.
BUILD_MESON = NINJA=$(wildcard $(CURDIR)/.venv/bin/ninja) meson
# Where the compiler of Debian looks for libraries. meson knows it only with dpkg-dev, and takes lib64 without.
MULTIARCH = $(shell $(CC) -print-multiarch 2>/dev/null)
all: ## build the library and the command into build-install/, with what is installed
	@command -v meson >/dev/null || { echo "make: meson is missing; install it: apt-get install -y gcc pkg-config meson ninja-build" >&2; exit 1; }
	@[ -f build-install/build.ninja ] || { rm -rf build-install; $(BUILD_MESON) setup build-install -Dbuildtype=release --prefix $(PREFIX) $(MULTIARCH:%=--libdir lib/%) >build-install.log 2>&1; } \
		|| { tail -n 12 build-install.log >&2; exit 1; }
	@rm -f build-install.log
	@$(BUILD_MESON) configure build-install -Dprefix=$(PREFIX)
	@$(BUILD_MESON) compile -C build-install >build-install/log 2>&1 || { cat build-install/log; exit 1; }

deps-build:
	@tools/install-deps.sh build
deps-test:
	@tools/install-deps.sh build test
deps-demo:
	@tools/install-deps.sh build
	@tools/install-deps.sh demo || echo "the demo falls back to texts that every Debian system has"
deps-peers: venv package
	@tools/install-deps.sh wheel packages cross ssh rgw swift slurm azurite browser
	@$(PYTHON) tests/py/install_peers.py
	@tools/venv.sh tools/docs/requirements.txt tools/docs/requirements-test.txt
deps-bench:
	@tools/install-deps.sh build bench

venv: deps-build
	@tools/venv.sh

build: deps-test venv
	@$(call SETUP,build,$(WERROR) -Dtests=true -Dexamples=true)
	@echo "building"
	@$(call COMPILE,build)

# The Python package and the pawl command, in .venv.
.venv/.pawl: $(WHEEL_SOURCES) | deps-build
	@tools/venv.sh packaging/requirements.txt
	@echo "installing the Python package into .venv"
	@$(PYTHON) -m pip install --quiet --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation \
		--config-settings=build-dir=build-wheel . </dev/null
	@touch $@
package:
	@$(MAKE) .venv/.pawl

demo-venv:
	@tools/venv.sh packaging/requirements.txt examples/demo/requirements.txt
demo: deps-demo demo-venv package ## train a real model, kill it in the middle of a save, resume, compare bit for bit
	@$(PYTHON) examples/demo/demo.py

recording: deps-demo demo-venv package ## record make demo, as docs/tutorials/demo.svg
	@$(PYTHON) tools/docs/record_demo.py docs/tutorials/demo.svg $(PYTHON) examples/demo/demo.py

demo-tune: demo-venv package ## a real search (16 trials; ASHA and PBT) that is killed twice and resumes
	@$(PYTHON) examples/demo/search.py

test: build package ## what needs no server, no other framework, no launcher and no root (minutes)
	@$(PYTHON) tools/run-tests.py --build build --set core

test-all: test test-rest ## every test: also real servers, frameworks, launchers, root, and what takes long
test-rest: deps-peers build package
	@$(PYTHON) tools/run-tests.py --build build --set rest

bench: deps-bench venv package ## compare with torch.save, safetensors and others; writes docs/explanation/benchmarks.md
	@tools/venv.sh bench/requirements-optional.txt
	@$(PYTHON) bench/bench.py $(BENCH)

bench-device: deps-bench venv package ## the same on a GPU; refuses without one
	@$(PYTHON) bench/device.py $(BENCH)

docs: package ## the site of the documents, searchable, into build-docs/
	@tools/venv.sh tools/docs/requirements.txt
	@out=$$(NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --config-file tools/docs/mkdocs.yml 2>&1) || { echo "$$out"; exit 1; }
	@echo "the site is build-docs/index.html; its search needs a server: python3 -m http.server -d build-docs"

proof: build ## the reliability figures: every kill point, failing call, flipped bit (PROOF="--only KIND")
	@build/tests/proof $(PROOF)
	@[ -n "$(PROOF)" ] || $(MAKE) proof-stores proof-searches

proof-stores: build ## of these only: every fault at every request of saves, restores and uploads to a store
	@$(PYTHON) tests/proof/stores.py --state build/proof-stores.jsonl

proof-searches: build ## of these only: searches in which memory or a write fails, or that are killed, and resume
	@build/tests/test_tune_faults --whole
	@build/tests/test_tune_runner --whole
	@$(PYTHON) tests/proof/searches.py

model: deps-test venv ## every state of a save of many ranks, with spin (minutes; about 2 GB)
	@$(PYTHON) tests/model/check.py

fuzz: deps-test venv ## fuzz every parser (FUZZ_SECONDS each, default 60)
	@export CC=clang; $(call SETUP,build-fuzz,-Dfuzz=true -Dcli=false \
		-Db_sanitize=address$(comma)undefined -Db_lundef=false)
	@$(call COMPILE,build-fuzz)
	@$(PYTHON) tools/fuzz.py --build build-fuzz --seconds $(or $(FUZZ_SECONDS),60)

lint: build ## the lint scripts, ruff, mypy, formatting and cppcheck
	@ls tools/lint/*.py | grep -v common.py | xargs -P 2 -n 1 sh -c '$(PYTHON) "$$0" --build build || exit 255'
	@.venv/bin/ruff check --quiet --no-cache .
	@.venv/bin/mypy --no-error-summary --cache-dir=/dev/null python/pawl
	@.venv/bin/ruff format --quiet --check bench examples python tests tools
	@.venv/bin/clang-format --dry-run --Werror $$(find include src tune cli tests examples python -name '*.[ch]')
	@cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,performance --inline-suppr \
		--suppress=missingIncludeSystem -DPAWL_BUILD -Iinclude -Isrc -Itune src tune cli

tidy: build ## clang-tidy over the library and the command (minutes)
	@find src tune cli -name '*.c' | xargs -P 2 -n 1 clang-tidy --quiet -p build 2>/dev/null

format: venv ## format the C and Python sources
	@.venv/bin/clang-format -i $$(find include src tune cli tests examples python -name '*.[ch]')
	@.venv/bin/ruff check --quiet --select I --fix .
	@.venv/bin/ruff format --quiet bench examples python tests tools

check-san: check-asan check-tsan ## the C tests under ASan+UBSan and under TSan

check-core: deps-test venv ## the core alone, without stores on other machines, jobs and the trial runner, and its C tests
	@$(call SETUP,build-core,$(WERROR) -Dtests=true -Dstores=disabled -Djobs=disabled -Dtune=disabled)
	@$(call COMPILE,build-core)
	@$(PYTHON) tools/run-tests.py --build build-core --only unit

# What may be left out of a build.
SWITCHES = lz4 xz bz2 s3 stores jobs tune
check-switches: deps-test venv ## the build without each of these parts alone, and without all of them, and its C tests (long)
	@$(call SETUP,build-without,-Dtests=true)
	@for parts in $(SWITCHES) "$(SWITCHES)"; do echo "without $$parts"; \
		$(MESON) configure build-without $(SWITCHES:%=-D%=enabled) $$(printf -- '-D%s=disabled ' $$parts) \
		&& { $(call COMPILE,build-without); } \
		&& $(PYTHON) tools/run-tests.py --build build-without --only unit || exit 1; done

check-asan: deps-test venv ## the C tests under ASan and UBSan
	@$(call SETUP,build-asan,-Dtests=true -Db_sanitize=address$(comma)undefined -Db_lundef=false)
	@$(call COMPILE,build-asan)
	@ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
		$(PYTHON) tools/run-tests.py --build build-asan --only unit

check-tsan: deps-test venv
	@$(call SETUP,build-tsan,-Dtests=true -Db_sanitize=thread -Db_lundef=false)
	@$(call COMPILE,build-tsan)
	@TSAN_OPTIONS=halt_on_error=1 $(PYTHON) tools/run-tests.py --build build-tsan --only unit

coverage: deps-test venv ## line and branch coverage of the C tests, into build-coverage/coverage.html
	@$(call SETUP,build-coverage,-Dtests=true -Db_coverage=true)
	@$(call COMPILE,build-coverage)
	@find build-coverage -name '*.gcda' -delete
	@$(PYTHON) tools/run-tests.py --build build-coverage --only unit
	@.venv/bin/gcovr --root . --object-directory build-coverage --filter src/ --exclude-throw-branches \
		--html-details build-coverage/coverage.html --print-summary

install: all ## install the library, the header, the command and its manual page (PREFIX, DESTDIR)
	@$(BUILD_MESON) install -C build-install --no-rebuild

wheel: ## the manylinux wheel, into dist/ (HOST=aarch64-linux-gnu: by a cross compiler)
	@tools/install-deps.sh build wheel $(if $(HOST),cross)
	@tools/venv.sh packaging/requirements.txt
	@packaging/static-libs.sh build-static$(HOST:%=-%) $(HOST)
	@$(PYTHON) packaging/wheel.py $(HOST:%=--host %)

deb: ## the Debian packages, into dist/ (of what is committed)
	@tools/install-deps.sh build packages
	@tools/venv.sh packaging/requirements.txt
	@packaging/deb.sh

sdist: ## the source archive, into dist/ (of what is committed)
	@tools/venv.sh packaging/requirements.txt
	@$(PYTHON) -c 'import os, mesonpy; os.makedirs("dist", exist_ok=True); mesonpy.build_sdist("dist")' >build-sdist.log 2>&1 \
		|| { cat build-sdist.log; exit 1; }
	@rm build-sdist.log; ls dist/*.tar.gz

clean: ## remove what was built (not .venv)
	@rm -rf build build-* dist runs .venv/.pawl

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
