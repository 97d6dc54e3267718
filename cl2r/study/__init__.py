"""Studies: many runs, their scheduler, ledger, live view and joined frames."""
