"""`cl2r fsck`: read everything below a storage and list what is damaged, foreign or left behind."""

import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING

import click

from cl2r.cli import options as shared
from cl2r.errors import InputError
from cl2r.runtime.text import printable

if TYPE_CHECKING:
    from cl2r.cli.findings import Finding
    from cl2r.storage.path import StoragePath

DAMAGED, LEFT_BEHIND = 5, 6
"""Exit codes: something is damaged; nothing is damaged, but there are foreign files or leftovers."""


@click.command()
@click.argument("storage", required=False, callback=lambda ctx, param, value: shared.find_storage(value))
@click.option("--repair", is_flag=True, help="Set damaged files aside, rebuild frames, remove leftovers.")
@click.option("--remove-unused", is_flag=True, help="Remove links that no finished run refers to.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def fsck(storage: "StoragePath", repair: bool, remove_unused: bool, as_json: bool) -> None:
    """Check every link, study, run, gallery and exported model below a storage.

    Reads all of it, on a disk or in an object store, and changes nothing unless asked. --repair sets damaged links and
    events aside; the next command trains or evaluates them again. Files that were set aside are listed from then on and
    removed by the next --repair. Exit code 0: all is sound; 5: something is damaged; 6: nothing is damaged, but files
    are foreign, unused or left behind. After a repair the exit code describes what remains. No link is removed while a
    command is at work, or while a study has not ended or cannot be read.
    """
    from rich.console import Console
    from rich.progress import Progress

    from cl2r.cli.findings import Finding
    from cl2r.cli.storage_check import check_storage

    if not storage.exists():
        raise click.UsageError(f"{storage}: no such folder")
    found, left, console = list[Finding](), list[Finding](), Console(stderr=True)
    with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        bar = progress.add_task("reading", total=None)
        for finding in check_storage(storage, lambda done, total: progress.update(bar, completed=done, total=total)):
            wanted = remove_unused if finding.kind == "unused" else repair
            if wanted and finding.repair is not None:
                finding = _repaired(finding)
            left += [] if finding.repaired else [finding]
            found.append(finding)
    if as_json:
        names = ("kind", "path", "what", "bytes", "repaired")
        entries = [{name: getattr(one, name) for name in names} | {"path": str(one.path)} for one in found]
        click.echo(json.dumps({"storage": str(storage), "findings": entries, "left": len(left)}))
    else:
        for finding in found:
            size = f", {finding.bytes:,} bytes" if finding.bytes else ""
            line = f"{finding.kind}: {finding.path}: {finding.what}{size}{'; repaired' * finding.repaired}"
            click.echo(printable(line))
        counts = Counter(finding.kind for finding in found)
        click.echo(
            ", ".join(f"{count} {kind}" for kind, count in counts.items()) or f"{printable(str(storage))}: all is sound"
        )
    if left:
        raise SystemExit(DAMAGED if any(finding.kind == "damaged" for finding in left) else LEFT_BEHIND)


def _repaired(finding: "Finding") -> "Finding":
    """Repair what was found; return the finding with the outcome."""
    assert finding.repair is not None
    try:
        finding.repair()
    except (InputError, OSError) as error:
        return dataclasses.replace(finding, what=f"{finding.what}; not repaired: {error}")
    return dataclasses.replace(finding, repaired=True)
