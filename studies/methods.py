"""All methods × task counts × seeds, under one budget (the shape of the paper's Tables 2 to 5).

    make methods                                                  # six tasks, three seeds, 10 epochs
    python studies/methods.py --seeds 0 1 2                       # the same with all 20 epochs
    python studies/methods.py --methods er lucir cl2r cl2r+aligner --counts 2 3 5 10
    python studies/methods.py --set method.budget=native          # each method's own schedule, if one is known

One task count prints one row per method with intervals over seeds and the cost of adaptation; several print one table
per metric. Methods that begin alike share their first task; adapters (`er+procrustes`) train nothing. Stages after the
first (BiC's pairs, PODNet's proxies, FAN's ψ) have epochs of their own, whatever `optim.epochs` says.
Cost on two cores with the default preset: about half an hour per seed and task count; `--plan` says more.
"""

from cl2r.cli.study import compare_methods

main = compare_methods(__file__, __doc__, "scenario.n_tasks", "--counts", "Numbers of tasks.")

if __name__ == "__main__":
    main.run_program()
