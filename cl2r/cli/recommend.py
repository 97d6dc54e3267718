"""The end of a race: print what it recommends, and leave the chosen config as a file that `cl2r run` takes."""

from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from cl2r.study.session import StudySession

FILE = "recommended.yaml"


def recommendation_text(session: "StudySession", frames: "dict[str, pd.DataFrame]", out: Path | None = None) -> str:
    """Return the recommendation, its table and the race in words; write the chosen config into the study's folder.

    `out` gets a copy. Without a choice there is no file, one of an earlier command is removed, and the text says that
    `out` was not written.
    """
    from analysis.recommendation import recommendation
    from analysis.tables.formats import render
    from cl2r.cli.report import study_of
    from cl2r.config.layers import from_dotted, merge_layers, resolve
    from cl2r.config.schema import to_yaml

    found, file = recommendation(study_of(session.folder, frames)), session.folder.path / FILE
    parts = [str(found), render(found.table, "terminal") if found.table else "", "\n".join(found.race)]
    if found.run is None:
        file.unlink(missing_ok=True)
        if out is not None:
            earlier = "; it is older than this result" if out.exists() else ""
            parts.append(f"config: {out} was not written{earlier}")
    else:
        values = session.ledger.outcomes()[found.run].read()["config"]
        text = to_yaml(resolve([merge_layers(starmap(from_dotted, values.items()))]))
        head = f"# {found.sentence}\n# cl2r run {FILE}\n"
        file.write_file((head + text).encode())
        where = [str(file)]
        if out is not None:
            out.write_text(head + text, encoding="utf-8")
            where.append(str(out))
        parts.append(f"config: {', '.join(where)}")
    return "\n\n".join(part for part in parts if part)
