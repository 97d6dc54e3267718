"""The paper's tables and figures, what its text states about them, and whether runs agree."""
