"""Search after upgrades: queries by the new model, a gallery by an old one (the paper's Algorithm 2), 1:N with labels.

    python studies/search.py                                           # er and cl2r, five tasks, seed 0
    python studies/search.py --seeds 0 1 2 --set optim.epochs=10 --set 'optim.milestones=[7,9]'
    python studies/search.py --methods er fan cl2r cl2r+aligner --draws 20
    cl2r plan search --seeds 0 1 2                                     # what it would cost

The run's report images are the gallery, at most 2,000 of them queries; no image is its own hit. Recall@1 is that of the
run's `matrix` frame. These are measured for every run:

    retrieval      C[t,k] by recall@1, 5, 10 and mAP, with 95 % intervals over queries
    compatibility  AC, BC, FC of these matrices
    backfill       queries by φ_T while the gallery goes from φ_1 to φ_T, in three orders (cl2r/gallery/backfill.py)
    formats        the gallery as float32, float16, or codes of a product quantiser that are not compared again
    indexes        kinds of index against the exact search, on the run's own gallery: too small to say which is fast

Each is a Parquet file in the folder `search` of the study, beside tables (search.md) and figures; with --out, tables,
figures and a copy of these files are there. The study's page, report.html, begins with what was found.
Cost on two cores with the default preset: about a minute and a half per run to train, a minute to measure.
studies/results/search_icons.md has the results; `make bench-search` measures indexes of a million vectors.
"""

import shlex
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cl2r.cli.options import NameType
from cl2r.cli.study import Frames, Recipe, list_option, study_command

if TYPE_CHECKING:
    import pandas as pd

    from analysis.study import Study
    from cl2r.engine.evaluation import ChainFeatures
    from cl2r.engine.plan import Plan
    from cl2r.storage.path import StoragePath
    from cl2r.study.folder import StudyFolder
    from cl2r.study.session import StudySession
    from cl2r.study.spec import StudySpec


@study_command(__file__, __doc__)
@click.pass_context
@list_option("--methods", type=NameType("method"), metavar="NAME...", help="Methods, or methods with +adapter.")
@click.option("--draws", type=click.IntRange(1), default=5, show_default=True, help="Random orders of a backfill.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of frames, tables and figures.")
def main(context: click.Context, methods: tuple[str, ...], draws: int, out: Path | None) -> Recipe:
    """Choose methods, and how to measure them."""

    def check(spec: "StudySpec") -> None:
        from cl2r.engine.plan import plan_run
        from cl2r.gallery.retrieval import report_images

        report_images(plan_run(spec.config(spec.points()[0], spec.seeds[0])))
        if out is not None and not context.params["plan"]:
            out.mkdir(parents=True, exist_ok=True)

    def show(session: "StudySession", frames: Frames) -> str:
        from cl2r.cli.report import study_of
        from cl2r.runtime.environment import shareable_command
        from cl2r.storage.path import at

        folder = session.folder
        own = folder.path / "search"
        write_frames(measure_runs(session.spec, frames["runs"], folder, draws), own, folder)  # the page needs them
        study = study_of(folder, frames)
        if out is not None:
            write_frames(study.search, at(out), folder)
        return present(study, at(out or own), shlex.join(shareable_command(sys.argv)))

    return Recipe({"grid": {"method.name": list(methods) or None}}, show, check=check)


def measure_runs(study: "StudySpec", runs: "pd.DataFrame", folder: "StudyFolder", draws: int) -> Frames:
    """Return the frames of all finished runs."""
    import pandas as pd

    from cl2r.engine.plan import plan_run
    from cl2r.gallery.backfill import backfill_rows
    from cl2r.gallery.retrieval import compatibility_rows, evaluate, report_images, retrieval_rows
    from cl2r.gallery.vectors import format_rows, index_rows
    from cl2r.study.jobs import grid_jobs

    finished = set(runs.loc[runs["status"] == "finished", "run"])
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in (job.runs[0] for job in grid_jobs(study) if job.runs[0].name in finished):
        click.echo(f"search {run.title}")
        plan = plan_run(run.config)
        features, images, spec = chain_features(plan, folder), report_images(plan), plan.config.eval
        evaluations = evaluate(features, images, spec.bootstrap, spec.pairs_seed, spec.ties)
        measured = {
            "retrieval": retrieval_rows(evaluations),
            "compatibility": compatibility_rows(evaluations),
            "backfill": backfill_rows(features, images, draws),
            "formats": format_rows(features, images),
            "indexes": index_rows(features, images),
        }
        head = {"run": run.name, "method": plan.config.method.name, "seed": plan.config.seed}
        for name, found in measured.items():
            rows[name] += [head | row for row in found]
    return {name: pd.DataFrame(found) for name, found in rows.items()}


def chain_features(plan: "Plan", folder: "StudyFolder") -> "ChainFeatures":
    """Return the features of the open images that a run's links keep; a lost link is trained again."""
    from cl2r.engine.chain import Chain
    from cl2r.runtime.progress import ProgressLine

    chain = Chain(plan, folder.storage, ProgressLine(len(plan.keys)), trained_by="", earlier=folder.makers())
    for task in chain.tasks:
        chain.ensure_link(task)
    return chain.features(len(plan.keys))


def write_frames(measured: Frames, out: "StoragePath", folder: "StudyFolder") -> None:
    """Write one Parquet file per frame of the study in `folder`."""
    from cl2r.storage.seal import write_beside

    for name, frame in measured.items():
        write_beside(out / f"{name}.parquet", frame.to_parquet(index=False), folder.owner(f"search/{name}.parquet"))


def present(study: "Study", out: "StoragePath", command: str) -> str:
    """Write tables and figures below `out`, beside the frames; return tables and what was found for the terminal."""
    from analysis.headline import headline
    from analysis.plots.search import write_search_figures
    from analysis.tables import told
    from analysis.tables.formats import render
    from analysis.tables.search import search_document, search_tables

    measured, frames = study.search, {"runs": study.runs, "tasks": study.tasks}
    tables = search_tables(measured)
    with out.staging() as here:
        drawn = write_search_figures(study.runs, measured["backfill"], measured["retrieval"], here)
        images = [path.name for path in drawn if path.suffix == ".png"]
        (here / "search.md").write_file(search_document(frames, tables, command, images).encode())
    written = ", ".join([f"{name}.parquet" for name in measured] + ["search.md", *images])
    text = told(headline(study), render(tables, "terminal"), "terminal")
    return f"{text}\n\nwritten to {out}: {written}"


if __name__ == "__main__":
    main.run_program()
