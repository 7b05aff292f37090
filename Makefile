# One check, the same in CI.
check:
	bash .ci/run

generate:
	cd schemas/proto && go tool -modfile=../../ops/tools/go.mod buf generate

fmt:
	go tool -modfile=ops/tools/go.mod gofumpt -w $$(git ls-files '*.go' | grep -v '\.pb\.go$$')

.PHONY: check generate fmt
