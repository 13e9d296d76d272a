# The targets; each is one command, which can also be run directly. See CONTRIBUTING.md.

.PHONY: build quick test test-long test-slow test-card test-virtio-card test-rdma test-filter test-experiments test-beside-a-server test-older-version test-ordinary-user simulation loom asan tsan fuzz bench figures demo manual ci

build:
	cargo build --release

# Between two edits: the unit tests of all crates, and the demonstration.
quick:
	cargo test --workspace --lib --bins
	cargo run -- demo --quick

test:
	cargo test --workspace --no-fail-fast

test-long:
	cargo test --workspace --test 'long-*'

test-slow:
	cargo test --workspace --test 'slow-*'

# The flow filter against its reference: ten million packets, and each instruction changed in turn.
test-filter:
	TOWPATH_FILTER_INPUTS=10000000 cargo test --release -p towpath-device --lib flow_filter -- --nocapture

test-card:
	tests/card

test-virtio-card:
	tests/virtio-card

test-rdma:
	tests/rdma

test-experiments:
	lab/build
	cargo test --release --manifest-path lab/Cargo.toml -p towpath-lab --test experiments

test-older-version:
	cargo build --release -p towpath -p towpath-examples
	tests/older-version target/release

test-beside-a-server:
	cargo build --workspace
	tests/beside-a-server cargo test -p towpath --bin towpath --test demo --test operator

test-ordinary-user:
	tests/ordinary-user

simulation:
	tests/simulate 20000

loom:
	CARGO_TARGET_DIR=target/loom RUSTFLAGS='--cfg loom' cargo test --release -p towpath-queue -p towpath-net-models --lib

asan:
	tests/sanitize asan

tsan:
	tests/sanitize tsan

fuzz:
	fuzz/short

experiments = queue demux optimistic notify switch peers isolation attacks hostile tap tcp rdma web wire flood kills upgrades soak coexistence sharing xdp lanes card notre-dame cambridge channels karlsruhe penn \
    freebsd waiting scale watchdog

bench:
	lab/build
	for name in $(experiments); do cargo lab $$name || exit 1; done

# Measures the figures of the documents anew.
figures:
	lab/build
	for name in $(experiments); do \
	    cargo lab $$name --out lab/results --pictures docs/pictures || exit 1; done
	cargo lab report

demo:
	cargo run --release -- demo

# The manual's pages and the shells' completions, under their installed names.
manual:
	cargo run --release -- man target/manual/man1
	mkdir -p target/completions
	cargo run --release -- completions bash >target/completions/towpath
	cargo run --release -- completions zsh >target/completions/_towpath
	cargo run --release -- completions fish >target/completions/towpath.fish

ci:
	.ci/run
