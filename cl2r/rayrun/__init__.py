"""Studies on Ray: Ray Tune with Optuna chooses and runs trials, Ray Train spreads a run over workers."""
