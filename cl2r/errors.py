"""What can go wrong, by whose hand, and how a program ends because of it."""

import difflib
import sys
import traceback
from collections.abc import Callable, Iterable

from cl2r.privacy import without_secrets

REQUEUE = 75
"""EX_TEMPFAIL: stopped from outside; the same command goes on where it stopped."""


class InputError(ValueError):
    """Bad input. Its message is one line that names what is at fault and what to do; a program exits with 2."""


class TrainingError(RuntimeError):
    """Training cannot go on, e.g. the loss is not a number. A program exits with 1, a study tries its next run."""


class StoppedError(Exception):
    """Asked to stop (SIGTERM), and everything up to here is saved. A program exits with REQUEUE."""


class ProcessDiedError(OSError):
    """Training processes died through no fault of their own; another attempt goes on where they were."""


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no known name is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def exit_code(name: str, main: Callable[[], int]) -> int:
    """Run `main`; what the user can mend, or asked for, ends in one line, not in a traceback. No secret is shown."""
    try:
        return main()
    except InputError as error:
        return _complain(name, str(error), 2)
    except (TrainingError, OSError) as error:
        return _complain(name, str(error), 1)
    except StoppedError as error:
        return _complain(name, str(error), REQUEUE)
    except KeyboardInterrupt:
        return _complain(name, "stopped; the same command goes on where it stopped", 130)
    except Exception:
        print(without_secrets(traceback.format_exc()), end="", file=sys.stderr)
        return 1


def _complain(name: str, message: str, code: int) -> int:
    print(f"{name}: {without_secrets(message)}", file=sys.stderr)
    return code
