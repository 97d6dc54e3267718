"""Studies: a recipe and a YAML file each. `cl2r study NAME` and `python studies/NAME.py` are the same."""
