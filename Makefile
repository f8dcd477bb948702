# Two commands: `make demo` shows what precog does, `make test` proves it. Both install what is missing (Debian
# packages, as root or with sudo), say so, and are safe to repeat.

BUILD_PACKAGES = g++ cmake ninja-build ccache libfmt-dev nlohmann-json3-dev libexpected-dev libcli11-dev libzstd-dev zlib1g-dev \
	libtomlplusplus-dev libyaml-cpp-dev
TEST_PACKAGES = $(BUILD_PACKAGES) doctest-dev python3 python3-pip python3-venv
BENCH_PACKAGES = $(BUILD_PACKAGES) libbenchmark-dev
JOBS ?= $(shell nproc)
PRECOG = build/release/precog

.PHONY: all build demo test test-capture bench accuracy goldens format clean help

all: build

help:
	@echo "make demo      install, build, and compare every precision for BERT-large on 8 x H100"
	@echo "make test      install, build, run every test"
	@echo "make test-capture  the tests that need PyTorch, in an environment of their own (build/torch, some GB)"
	@echo "make build     the program alone: $(PRECOG)"
	@echo "make bench     how fast predictions are"
	@echo "make accuracy  predicted against measured, from the recorded runs"
	@echo "make goldens   rewrite the expected texts of the tests; read the diff before you commit it"
	@echo "make clean     forget everything built"

build:
	@tools/install_packages $(BUILD_PACKAGES)
	@tools/build release $(JOBS)

demo: build
	@tools/demo $(PRECOG)

test:
	@tools/install_packages $(TEST_PACKAGES)
	@tools/run_tests $(JOBS)

# torch from PyPI; PRECOG_TORCH_PYTHON=... uses an interpreter that is there already.
test-capture:
	@tools/install_packages $(TEST_PACKAGES)
	@tools/torch_environment
	@tools/run_tests --capture $(JOBS)

bench:
	@tools/install_packages $(BENCH_PACKAGES)
	@tools/build bench $(JOBS)
	@build/bench/precog_bench

accuracy: build
	@PRECOG=$(PRECOG) tools/accuracy

goldens: build
	@PRECOG=$(PRECOG) tools/rewrite_goldens
	@PRECOG=$(PRECOG) tools/accuracy >/dev/null
	@PRECOG=$(PRECOG) python3 tests/how_to_test.py --rewrite
	@git --no-pager diff --stat -- tests/goldens docs ARCHITECTURE.md README.md || true

format:
	@clang-format -i $$(git ls-files '*.h' '*.cpp')

clean:
	rm -rf build
