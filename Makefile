# Everything here is one command that can also be typed by hand. `make help` lists it.
.DEFAULT_GOAL := help
GO ?= go
TOOL := $(GO) tool -modfile=tools/go.mod

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/tarik
	$(GO) build -trimpath -o bin/ ./cmd/...

.PHONY: test
test: ## every test
	$(GO) test ./...

.PHONY: ci
ci: ## all that must pass before a change lands; STEPS="build test" for some of it
	.ci/run $(STEPS)

.PHONY: lint
lint: ## golangci-lint, pinned in tools/go.mod
	$(TOOL) golangci-lint run ./...

.PHONY: fmt
fmt: ## gofumpt and import order, in place
	$(TOOL) golangci-lint fmt ./...

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (20s)
	FUZZTIME=$${FUZZTIME:-20s} .ci/run fuzz

.PHONY: deps
deps: ## write docs/deps.txt anew after a change of imports
	$(GO) test ./internal -run '^TestDependencies$$' -update

.PHONY: up
up: ## router, prefill and decode engine in one process
	$(GO) run ./cmd/tarik up

.PHONY: replay
replay: ## the agent conversations of test/conversations through a private `tarik up`, checked token by token
	scripts/replay/up.sh --conversations-dir test/conversations $(ARGS)

.PHONY: interop
interop: ## a real vLLM pair behind `tarik serve`: make interop VLLM_PAIR=… PAIR_DIR=… VERSION=0.33.0
	scripts/interop/run.sh "$(PAIR_DIR)" "$(or $(VERSION),0.33.0)"
