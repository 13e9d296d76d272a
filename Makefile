# The verbs; each is one command, that can as well be given by itself. See CONTRIBUTING.md.

.PHONY: build test test-ordinary-user loom fuzz bench figures demo manual ci

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

experiments = queue demux optimistic switch isolation attacks tcp notre-dame cambridge karlsruhe penn \
    freebsd waiting scale watchdog

bench:
	for name in $(experiments); do cargo run --release -- bench $$name || exit 1; done

# Measures anew what docs/benchmarks.md shows.
figures:
	for name in $(experiments); do \
	    cargo run --release -- bench $$name --out docs/benchmarks || exit 1; done
	cargo run --release -- bench report

demo:
	cargo run --release -- demo

# The manual's pages and the shells' completions, under the names that they are installed by.
manual:
	cargo run --release -- man target/manual/man1
	mkdir -p target/completions
	cargo run --release -- completions bash >target/completions/towpath
	cargo run --release -- completions zsh >target/completions/_towpath
	cargo run --release -- completions fish >target/completions/towpath.fish

ci:
	.ci/run
