"""The commands of `cl2r`, one module per group of commands, each imported only when it is used."""
