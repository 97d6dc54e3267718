"""What can go wrong, by whose hand."""


class InputError(ValueError):
    """Bad input. Its message is one line that names what is at fault and what to do; the CLI exits with 2."""


class TrainingError(RuntimeError):
    """Training cannot go on, e.g. the loss is not a number. The CLI exits with 1, a study goes on with the next run."""
