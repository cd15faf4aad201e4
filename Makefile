# Verbs only, for those whose fingers type make: everything is done by ./dev.
.PHONY: all setup build test sim demo demo-stop bench fmt
all: build
setup build test sim demo bench fmt:
	@./dev $@
demo-stop:
	@./dev demo stop
