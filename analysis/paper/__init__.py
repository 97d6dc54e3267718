"""The paper's tables and figures, what its text says of them, and whether runs agree."""
