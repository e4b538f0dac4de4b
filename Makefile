# bnmem: build the book, run the tests, recompute the results. `make` lists the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HTML := _build/html/index.html

.PHONY: help book html test environment notebooks fresh smoke verify links serve clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

book: $(READY)  ## execute the notebooks from records, build the HTML, print where it is
	$(BIN)/python tools/notebooks.py
	$(BIN)/python tools/build_book.py
	@echo "Open $(CURDIR)/$(HTML)"

test: $(READY)  ## everything that guards the project
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest --durations=10 -rs
	$(BIN)/python -m pytest --nbval notebooks --nbval-sanitize-with tests/nbval_sanitize.cfg -p no:cacheprovider

html: $(READY)  ## build the HTML from the notebooks as they are committed
	$(BIN)/python tools/build_book.py

notebooks: $(READY)  ## execute the notebooks from records, rewrite those that differ (NAMES="a b" for some)
	$(BIN)/python tools/notebooks.py $(NAMES)

fresh: $(READY)  ## the same, everything computed anew (hours; replaces records)
	$(BIN)/python tools/notebooks.py --fresh $(NAMES)

smoke: $(READY)  ## compute every notebook at its smallest size, from nothing, in a scratch folder
	$(BIN)/python tools/notebooks.py --profile smoke $(NAMES)

verify: $(READY)  ## recompute every laptop record and compare (hours; changes no record)
	$(BIN)/python tools/verify_laptop.py

links: $(READY)  ## ask every link of the book that leads to another site (needs the network)
	$(BIN)/python tools/check_links.py

environment: $(READY)  ## only install

serve: $(HTML)  ## show the book on a local port, built first where it is not there
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html 8000

$(HTML):
	$(MAKE) book

clean:  ## remove what can be rebuilt (not the records)
	rm -rf _build $(VENV) .pytest_cache .ruff_cache .hypothesis *.egg-info

# The environment: about 6 GB and two to five minutes, once; again only when the pins change.
$(READY): requirements.txt pyproject.toml tools/preflight.py
	@$(PYTHON) tools/preflight.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --requirement requirements.txt
	$(BIN)/python -m pip install --no-deps --editable .
	@touch $(READY)
