# The verbs; each is one command, that can as well be given by itself. See CONTRIBUTING.md.

.PHONY: build test test-ordinary-user loom fuzz bench demo ci

build:
	cargo build --release

test:
	cargo test --workspace

test-ordinary-user:
	tests/ordinary-user

loom:
	CARGO_TARGET_DIR=target/loom RUSTFLAGS='--cfg loom' cargo test --release -p towpath-queue --lib

fuzz:
	fuzz/short

bench:
	cargo run --release -- bench

demo:
	cargo run --release -- demo

ci:
	.ci/run
