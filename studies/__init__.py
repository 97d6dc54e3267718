"""One file a study; `cl2r study NAME` and `python studies/NAME.py` are the same."""
