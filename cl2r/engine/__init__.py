"""Algorithm 1: the training loop, the chain of tasks, the store of its links, and their evaluation."""
