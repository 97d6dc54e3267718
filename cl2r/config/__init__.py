"""Configuration: typed fields, layers, link keys, and the facts about every method. Imports no torch."""
