"""Storage: one path type for disk and object store, and locks."""
