"""What every process needs while it runs: logging, progress, stopping, environment."""
