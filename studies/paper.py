"""One of the paper's tables or figures, beside what the paper's text says about it and whether these runs agree.

    python studies/paper.py --table 2                             # CIFAR10, two tasks, eleven methods
    python studies/paper.py --table 3 --seeds 0 1 2               # 3, 5 and 10 tasks
    python studies/paper.py --table ablation --out studies/results/ablation.md
    python studies/paper.py --figure bc --preset tiny_imagenet200
    python studies/paper.py --table 3 --methods er fan cl2r --counts 3 10 --set optim.epochs=10
    python studies/paper.py --table 3 --preset icons              # the same comparison on other data
    cl2r plan paper --table 7 --gpus-per-worker 1                 # what it would cost

Tables: 2 to 8, ablation (9). Figures: bc (2), memory (3). Each has its own preset, methods and task counts.
The printed text ends, and the study's page begins, with how many statements of the paper's text hold. They are in
analysis/reference/paper.yaml. Orders, signs and trends are judged at any budget, on means over seeds; values only if
all settings are those of the paper's preset; nothing on other data; see analysis/paper/verdicts.py.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cl2r.cli.options import NameType
from cl2r.cli.study import Frames, Recipe, list_option, study_command
from cl2r.errors import InputError

if TYPE_CHECKING:
    from analysis.study import Study
    from cl2r.storage.path import StoragePath
    from cl2r.study.session import StudySession


@study_command(__file__, __doc__)
@click.pass_context
@click.option("--table", metavar="N", help="A table: 2 to 8, or ablation.")
@click.option("--figure", metavar="NAME", help="A figure: bc or memory.")
@list_option("--methods", type=NameType("method"), metavar="NAME...", help="Other rows than the paper's.")
@list_option("--counts", type=int, metavar="T...", help="Other numbers of tasks than the paper's.")
@list_option("--sizes", type=int, metavar="N...", help="Images per class in memory, for --figure memory.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.md", help="Also write a document.")
def main(
    context: click.Context,
    table: str | None,
    figure: str | None,
    methods: tuple[str, ...],
    counts: tuple[int, ...],
    sizes: tuple[int, ...],
    out: Path | None,
) -> Recipe:
    """Choose the runs that the item needs."""
    from analysis.paper.items import ITEMS
    from analysis.paper.report import preset_fields
    from cl2r.runtime.environment import shareable_command

    asked = [f"{kind} {word}" for kind, word in (("table", table), ("figure", figure)) if word is not None]
    if len(asked) != 1 or asked[0] not in ITEMS:
        given, known = (", ".join(f"--{name}" for name in names) for names in (asked, ITEMS))
        raise InputError(f"{given or 'no item'}: give one table or one figure of {known}")
    name, preset = asked[0], context.params["preset"]
    item = ITEMS[name]
    reference = preset if preset in item.presets else item.presets[0]  # it has the paper's settings
    for method in methods or item.methods:
        preset_fields(reference, method)  # raises InputError now, not after training, if it cannot be read
    if sizes and not item.sizes:
        raise InputError(f"--sizes: {name} has one size of memory; use --set memory.per_class=N")
    if counts and context.params["tasks"] is not None:
        raise InputError("give --counts or --tasks, not both")
    if out is not None and not context.params["plan"]:
        if out.suffix != ".md":
            raise InputError(f"--out {out}: a Markdown file ends in .md")
        out.parent.mkdir(parents=True, exist_ok=True)
    grid = {"method.name": list(methods or item.methods), "scenario.n_tasks": list(counts or item.tasks)}
    if item.sizes:
        grid["memory.per_class"] = list(sizes or item.sizes)

    def show(session: "StudySession", frames: Frames) -> str:
        from cl2r.cli.report import study_of
        from cl2r.storage.seal import write_beside

        folder, item = session.folder.path, json.dumps({"item": name, "preset": reference}).encode()
        write_beside(folder / "paper.json", item, session.folder.owner("paper.json"))  # for the page
        return present(study_of(session.folder, frames), folder, out, shlex.join(shareable_command(sys.argv)))

    return Recipe({"grid": grid, "preset": preset or item.presets[0]}, show)


def present(study: "Study", folder: "StoragePath", out: Path | None, command: str) -> str:
    """Return the report as text; draw figures into the study's folder and, with `out`, also beside that file."""
    from analysis.headline import headline
    from analysis.paper.report import Report, document
    from analysis.tables import told
    from cl2r.storage.path import at

    report, name = Report.of_study(study), study.paper["item"]
    lines, images = [told(headline(study), report.text("terminal"), "terminal")], []
    if name.startswith("figure"):
        from analysis.plots import plot_bc_curves, plot_memory
        from analysis.plots.parts import save

        plot = plot_bc_curves if report.item.layout == "bc" else plot_memory
        try:
            drawn = plot(study)
        except InputError as error:  # the values and verdicts are there all the same
            lines.append(f"no figure: {error}")
        else:
            with folder.staging() as here:
                saved = save(drawn, here / name.replace(" ", "_"))
            lines.append("figure: " + ", ".join(str(folder / path.name) for path in saved))
            images = [path.name for path in save(drawn, out.with_suffix(""))][:1] if out else []
    if out is not None:
        frames = {"runs": study.runs, "tasks": study.tasks}
        at(out).write_file(document(report, frames, command, images).encode())
        lines.append(f"written: {out}")
    return "\n\n".join(lines)


if __name__ == "__main__":
    main.run_program()
