"""Methods that train compatible representations, one file each; `base` has the contract and builds them by name."""
