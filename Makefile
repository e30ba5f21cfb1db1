# The commands of this project. `make` alone lists them.

# Cargo reads CARGO_TARGET_DIR by itself; here it is only the place of the binary afterwards.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

CHAOS_ARGS ?= --minutes 10
BENCH_ARGS ?=
SERVE_ARGS ?=
FUZZ_SECONDS ?= 60

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build serve setup test chaos bench fuzz release deb newcomer clean

help:
	@sed -n 's/^## //p' Makefile

build:
	@scripts/build

## serve   build the release binary and run the daemon in the foreground (SERVE_ARGS)
serve: build
	exec "$(TARGET_DIR)/release/outpost" serve $(SERVE_ARGS)

setup:
	@scripts/setup-tests

## test    everything that must hold before a commit; CI runs exactly this
# Cheap checks run first. The tests run last, so that their summary and the list of tests that could not run end the
# output. The binaries are built by name before the tests: cargo builds a package's binary only for the tests of that
# package, and the tests of other packages start binaries, too. Binaries and tests are built by one command: the tests
# enable more features of shared dependencies, so two commands would build these twice. There are no doc tests; the
# commands in docs/ are run by crates/outpost/tests/daemon/docs.rs.
test: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	cargo check --manifest-path fuzz/Cargo.toml --target-dir "$(TARGET_DIR)"
	@if cargo deny --version >/dev/null 2>&1; then \
		set -x; \
		cargo deny check --hide-inclusion-graph licenses bans sources && \
		cargo deny --manifest-path fuzz/Cargo.toml check --hide-inclusion-graph licenses bans sources; \
	else \
		echo "cargo-deny is not installed: licences, bans and sources are not checked"; \
	fi
	cargo build --workspace --bins --tests
	@scripts/run-tests --workspace

## chaos   random clients against a daemon that is killed all the time (CHAOS_ARGS, default --minutes 10)
# The checker starts the `outpost` and `producer` that stand beside it.
chaos: build
	cargo build --release -p outpost-testkit --bins
	cargo run --release -p outpost-testkit --bin chaos -- $(CHAOS_ARGS)

## bench   the side-by-side benchmark (BENCH_ARGS)
bench: build
	cargo run --release -p outpost-bench --bin bench -- $(BENCH_ARGS)

## fuzz    every fuzz target, or FUZZ_TARGET alone, for FUZZ_SECONDS each (default 60)
fuzz:
	@missing=; \
	cargo +nightly --version >/dev/null 2>&1 || missing="$$missing nightly-toolchain"; \
	cargo fuzz --version >/dev/null 2>&1 || missing="$$missing cargo-fuzz"; \
	command -v c++ >/dev/null || missing="$$missing g++"; \
	if [ -n "$$missing" ]; then echo "make fuzz: missing:$$missing" >&2; exit 1; fi
	@set -e; for target in $(or $(FUZZ_TARGET),$$(cargo +nightly fuzz list)); do \
		echo "fuzzing $$target for $(FUZZ_SECONDS) s"; \
		cargo +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS); \
	done

## release the release files: static binary, archive, SBOM and checksums, in target/release-files
release:
	@scripts/release

## deb     the same as a Debian package
deb: release
	@scripts/deb

## newcomer follows the README and docs/getting-started.md in a clean Debian root (as root)
newcomer: release
	@scripts/newcomer

## clean   remove what the builds made; fuzz corpora and findings stay
clean:
	cargo clean
	cargo clean --manifest-path fuzz/Cargo.toml
